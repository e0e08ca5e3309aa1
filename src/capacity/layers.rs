//! What each layer keeps, from the many ways in which `config.json` says it.

use serde_json::Value;

use crate::capacity::config_json::{HEAD_KEYS, HIDDEN_KEYS, Keys};
use crate::capacity::shape::{MAX_HEAD_DIM, MAX_HEADS, MAX_LATENT, MAX_LAYERS, MAX_WINDOW, bounded, invalid};
use crate::capacity::{CapacityError, LayerCache};

/// Wider than every published model; only for the default of a head's width.
const MAX_WIDTH: u32 = 1 << 20;

/// Models whose every layer has the window of the file.
const WINDOW_EVERYWHERE: &[&str] = &["mistral", "starcoder2", "phi3"];
/// Models where every other layer has a window, the first one included, if the file does not say which.
const WINDOW_ON_EVEN_LAYERS: &[&str] = &["gemma2", "gpt_oss"];
/// Models without any attention.
const STATE_ONLY: &[&str] = &["mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm"];

/// How a layer looks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Everything,
    Window(u32),
    State,
    Nothing,
}

/// The layers' caches; what is assumed or not counted goes to `notes`.
pub(super) fn layers(keys: &Keys<'_>, notes: &mut Vec<String>) -> Result<Vec<LayerCache>, CapacityError> {
    for (key, what) in [
        ("is_encoder_decoder", "an encoder with a decoder"),
        ("block_configs", "layers of different shapes (`block_configs`)"),
    ] {
        if keys.value(key).is_some_and(|value| *value != Value::Bool(false)) {
            return Err(CapacityError::NotCounted { what: what.into() });
        }
    }
    let n_layer = keys.required(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"], MAX_LAYERS)? as usize;
    let mut reaches = reaches(keys, n_layer, notes)?;
    if let Some(n_shared) = keys.nonzero(&["num_kv_shared_layers"], MAX_LAYERS)? {
        let first = n_layer.saturating_sub(n_shared as usize);
        reaches[first..].fill(Reach::Nothing);
        notes.push(format!("the last {n_shared} layers read the cache of earlier ones and have none of their own"));
    }
    let n_state = reaches.iter().filter(|reach| **reach == Reach::State).count();
    if n_state > 0 {
        notes.push(format!(
            "{n_state} of {n_layer} layers keep a state of fixed size (linear attention, Mamba or convolution), which is not counted; their weights are an estimate"
        ));
    }
    let attends = |reach: &Reach| matches!(reach, Reach::Everything | Reach::Window(_));
    if !reaches.iter().any(attends) {
        return Ok(reaches.iter().map(|reach| cache_of(*reach, LayerCache::None)).collect());
    }
    let attention = attention(keys)?;
    Ok(reaches.into_iter().map(|reach| cache_of(reach, attention)).collect())
}

fn cache_of(reach: Reach, attention: LayerCache) -> LayerCache {
    match (reach, attention) {
        (Reach::State, _) => LayerCache::State,
        (Reach::Nothing, _) => LayerCache::None,
        (Reach::Window(window), LayerCache::Heads { n_kv_head, key_dim, value_dim, .. }) => {
            LayerCache::Heads { n_kv_head, key_dim, value_dim, window: Some(window) }
        }
        (Reach::Everything | Reach::Window(_), attention) => attention,
    }
}

/// A layer that sees everything.
fn attention(keys: &Keys<'_>) -> Result<LayerCache, CapacityError> {
    if let Some(latent_dim) = keys.nonzero(&["kv_lora_rank"], MAX_LATENT)? {
        let rope_dim = keys.required(&["qk_rope_head_dim"], MAX_HEAD_DIM)?;
        let index_dim = keys.nonzero(&["index_head_dim"], MAX_HEAD_DIM)?.unwrap_or(0);
        return Ok(LayerCache::Latent { latent_dim, rope_dim, index_dim });
    }
    let n_head = keys.required(&HEAD_KEYS, MAX_HEADS)?;
    let kv_keys = ["num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"];
    let n_kv_head = match keys.optional(&kv_keys, MAX_HEADS)? {
        Some(n) => n,
        None if keys.flag("multi_query") => 1,
        None => n_head,
    };
    if n_kv_head > n_head {
        return Err(invalid("num_key_value_heads", &n_kv_head.to_string(), "more than there are attention heads"));
    }
    let key_dim = match keys.optional(&["head_dim", "kv_channels"], MAX_HEAD_DIM)? {
        Some(dim) => dim,
        // Rounded down, as the models' own software does.
        None => bounded(
            "hidden_size / num_attention_heads",
            keys.required(&HIDDEN_KEYS, MAX_WIDTH)? / n_head,
            MAX_HEAD_DIM,
        )?,
    };
    let value_dim = keys.nonzero(&["v_head_dim"], MAX_HEAD_DIM)?.unwrap_or(key_dim);
    Ok(LayerCache::Heads { n_kv_head, key_dim, value_dim, window: None })
}

fn reaches(keys: &Keys<'_>, n_layer: usize, notes: &mut Vec<String>) -> Result<Vec<Reach>, CapacityError> {
    if let Some(known) = keys.known {
        let reach = |window: Option<usize>| match window.and_then(|window| u32::try_from(window).ok()) {
            Some(window) => Reach::Window(window),
            None => Reach::Everything,
        };
        return Ok(known.layers.iter().map(|layer| reach(layer.window)).collect());
    }
    if let Some(named) = named_layers(keys, n_layer, notes)? {
        return Ok(named);
    }
    if let Some(interval) = keys.nonzero(&["full_attention_interval"], MAX_LAYERS)? {
        return Ok(every(n_layer, interval as usize, Reach::Everything, Reach::State));
    }
    if let Some(period) = keys.nonzero(&["attn_layer_period"], MAX_LAYERS)? {
        let offset = keys.nonzero(&["attn_layer_offset"], MAX_LAYERS)?.unwrap_or(0) as usize;
        let reach = |i: usize| if i % period as usize == offset { Reach::Everything } else { Reach::State };
        return Ok((0..n_layer).map(reach).collect());
    }
    if keys.value("attn_layer_indices").is_some() {
        let attending = keys.indices("attn_layer_indices");
        let reach = |i: usize| if attending.contains(&i) { Reach::Everything } else { Reach::State };
        return Ok((0..n_layer).map(reach).collect());
    }
    if STATE_ONLY.contains(&keys.model_type()) {
        return Ok(vec![Reach::State; n_layer]);
    }
    windows(keys, n_layer, notes)
}

/// Every `period`-th layer, counted from 1, is `one`, the others `other`.
fn every(n_layer: usize, period: usize, one: Reach, other: Reach) -> Vec<Reach> {
    (1..=n_layer).map(|i| if i.is_multiple_of(period) { one } else { other }).collect()
}

/// One name, number or letter per layer.
fn named_layers(keys: &Keys<'_>, n_layer: usize, notes: &mut Vec<String>) -> Result<Option<Vec<Reach>>, CapacityError> {
    let (key, reaches): (&str, Vec<Reach>) = if let Some((key, names)) =
        ["layer_types", "layers_block_type"].iter().find_map(|key| Some((*key, keys.value(key)?.as_array()?)))
    {
        let reach = |name: &Value| named_reach(keys, name.as_str().unwrap_or_default(), notes);
        (key, names.iter().take(n_layer + 1).map(reach).collect::<Result<_, _>>()?)
    } else if let Some(pattern) = keys.value("hybrid_override_pattern").and_then(Value::as_str) {
        let reach = |letter: char| match letter {
            'M' => Reach::State,
            '*' => Reach::Everything,
            _ => Reach::Nothing,
        };
        ("hybrid_override_pattern", pattern.chars().take(n_layer + 1).map(reach).collect())
    } else if let Some(flags) = keys.value("attn_type_list").and_then(Value::as_array) {
        let reach = |flag: &Value| if flag.as_u64() == Some(0) { Reach::State } else { Reach::Everything };
        ("attn_type_list", flags.iter().take(n_layer + 1).map(reach).collect())
    } else {
        return Ok(None);
    };
    if reaches.len() != n_layer {
        return Err(invalid(key, "of another length", &format!("must have one entry for each of {n_layer} layers")));
    }
    Ok(Some(reaches))
}

fn named_reach(keys: &Keys<'_>, name: &str, notes: &mut Vec<String>) -> Result<Reach, CapacityError> {
    let window = match name {
        "full_attention" | "attention" | "hybrid" => return Ok(Reach::Everything),
        "linear_attention" | "mamba" | "mamba2" | "conv" | "short_conv" | "recurrent" => return Ok(Reach::State),
        "mlp" | "moe" => return Ok(Reach::Nothing),
        "sliding_attention" | "local_attention" => keys.nonzero(&["sliding_window"], MAX_WINDOW)?,
        "chunked_attention" => keys.nonzero(&["attention_chunk_size"], MAX_WINDOW)?,
        _ => None,
    };
    Ok(window.map_or_else(
        || {
            // The name is text of a file: shown short and without what a terminal obeys.
            let shown: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
            let note = format!("layers of type `{shown}` are counted as if they kept every token");
            if !notes.contains(&note) {
                notes.push(note);
            }
            Reach::Everything
        },
        Reach::Window,
    ))
}

/// Windows where the file names no layer.
fn windows(keys: &Keys<'_>, n_layer: usize, notes: &mut Vec<String>) -> Result<Vec<Reach>, CapacityError> {
    let everything = vec![Reach::Everything; n_layer];
    let is_off = keys.value("use_sliding_window") == Some(&Value::Bool(false));
    let Some(window) = keys.nonzero(&["sliding_window"], MAX_WINDOW)?.filter(|_| !is_off) else {
        return Ok(everything);
    };
    let model_type = keys.model_type();
    let pattern = keys.nonzero(&["sliding_window_pattern", "_sliding_window_pattern"], MAX_LAYERS)?;
    Ok(if let Some(period) = pattern {
        every(n_layer, period as usize, Reach::Everything, Reach::Window(window))
    } else if WINDOW_EVERYWHERE.contains(&model_type) {
        vec![Reach::Window(window); n_layer]
    } else if WINDOW_ON_EVEN_LAYERS.contains(&model_type) {
        every(n_layer, 2, Reach::Everything, Reach::Window(window))
    } else {
        notes.push(format!(
            "the file has a window of {window} tokens and does not say for which layers: all are counted as if they kept every token"
        ));
        everything
    })
}
