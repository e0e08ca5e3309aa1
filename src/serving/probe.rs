//! Asking a running server what it is and what is in effect, without generating a token.
//!
//! No two engines have the same endpoints, so all of [`QUESTIONS`] are asked and whatever is understood is kept, each with its
//! path as the source. What a server only repeats of its own configuration goes into the `requested_` fields: the front
//! process does not know what its workers store. A new endpoint is a function in `replies` and a line in [`QUESTIONS`].

mod replies;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::JoinSet;

use crate::serving::facts::ServerFacts;
use crate::serving::http::{Endpoint, EndpointError, Reply};

/// Most models listed: gateways with a catalogue have hundreds, an engine has one and its adapters.
const MAX_MODELS: usize = 1000;
/// Name of the endpoint that every engine of this kind has.
const MODELS: &str = "/v1/models";

/// What a server said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The address asked, without `/v1`.
    pub address: String,
    /// Whose interface it speaks, as in [`ServerFacts::engine`]; `None` for another one with a list of models.
    pub dialect: Option<String>,
    /// Models it serves.
    pub models: Vec<ServedModel>,
    /// What each endpoint said, by its path.
    pub sources: Vec<(String, ServerFacts)>,
    /// Endpoints without an answer of use, with what came instead. Servers have a few each; this is no fault.
    pub silent: Vec<(String, String)>,
}

/// A model in the list of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedModel {
    /// Name to ask for.
    pub id: String,
    /// Folder or repository it was loaded from, where the server says so.
    pub root: Option<String>,
    /// Longest context in tokens, where the server says so.
    pub max_model_len: Option<u32>,
}

/// An endpoint and how its answer is read.
struct Question {
    path: &'static str,
    read: fn(&Reply) -> Option<ServerFacts>,
}

const QUESTIONS: &[Question] = &[
    Question { path: MODELS, read: replies::models },
    Question { path: "/version", read: replies::version },
    Question { path: "/metrics", read: replies::metrics },
    Question { path: "/prometheus/metrics", read: replies::metrics },
    Question { path: "/server_info?config_format=json", read: replies::server_info },
    Question { path: "/get_server_info", read: replies::server_info },
    Question { path: "/props", read: replies::props },
    Question { path: "/slots", read: replies::slots },
    Question { path: "/info", read: replies::info },
    Question { path: "/api/version", read: replies::ollama_version },
    Question { path: "/api/ps", read: replies::ollama_running },
];

/// Asks the server at `address`, with the `key` it may want.
///
/// # Errors
/// [`EndpointError`]: it cannot be reached or refuses access, answers with a web page or a redirect, or to no question like an
/// inference server.
pub async fn probe(address: &str, key: Option<&str>) -> Result<Probe, EndpointError> {
    let endpoint = Arc::new(Endpoint::new(address, key)?);
    // The first question alone: where nobody listens, the others need not be asked.
    let first = endpoint.get(MODELS).await?;
    if first.is_denied() {
        return Err(EndpointError::Denied { url: endpoint.address().to_owned(), status: first.status });
    }
    let models = served_models(&first);
    let mut probe = Probe {
        address: endpoint.address().to_owned(),
        dialect: None,
        models,
        sources: Vec::new(),
        silent: Vec::new(),
    };
    let first_fault = fault(&endpoint, &first);
    let mut replies = vec![(MODELS, Ok(first))];
    replies.extend(ask_the_rest(&endpoint).await);
    for (path, reply) in replies {
        let read = QUESTIONS
            .iter()
            .find(|question| question.path == path)
            .and_then(|question| reply.as_ref().ok().and_then(|reply| (question.read)(reply)));
        match read {
            Some(facts) => probe.sources.push((source_name(path), facts)),
            None => probe.silent.push((source_name(path), outcome(&reply))),
        }
    }
    probe.dialect = probe.sources.iter().find_map(|(_, facts)| facts.engine.clone());
    if probe.dialect.as_deref() == Some("ollama") {
        ask_ollama(&endpoint, &mut probe).await;
    }
    // A bare version belongs to the engine that the other endpoints name.
    for (_, facts) in &mut probe.sources {
        facts.engine = facts.engine.take().or_else(|| probe.dialect.clone());
    }
    match probe.dialect.is_none() && probe.models.is_empty() {
        true => Err(first_fault.unwrap_or_else(|| unknown(&probe))),
        false => Ok(probe),
    }
}

/// Without the query: that only chooses the form of the answer.
fn source_name(path: &str) -> String {
    path.split('?').next().unwrap_or(path).to_owned()
}

/// A reply that shows that this is no inference server, if nothing else shows the contrary.
fn fault(endpoint: &Endpoint, reply: &Reply) -> Option<EndpointError> {
    let (url, status) = (endpoint.address().to_owned(), reply.status);
    if reply.is_redirect() {
        Some(EndpointError::Redirect { url, status })
    } else if reply.is_web_page() {
        Some(EndpointError::WebPage { url, status })
    } else {
        None
    }
}

fn unknown(probe: &Probe) -> EndpointError {
    let replies = probe.silent.iter().map(|(path, outcome)| format!("{path} {outcome}")).collect::<Vec<_>>();
    EndpointError::Unknown { url: probe.address.clone(), replies: replies.join(", ") }
}

type Asked = (&'static str, Result<Reply, EndpointError>);

/// All other questions at once, in the order of the list.
async fn ask_the_rest(endpoint: &Arc<Endpoint>) -> Vec<Asked> {
    let mut tasks = JoinSet::new();
    for (index, question) in QUESTIONS.iter().enumerate().filter(|(_, question)| question.path != MODELS) {
        let endpoint = Arc::clone(endpoint);
        tasks.spawn(async move { (index, (question.path, endpoint.get(question.path).await)) });
    }
    let mut replies: Vec<(usize, Asked)> = tasks.join_all().await;
    replies.sort_by_key(|(index, _)| *index);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

fn outcome(reply: &Result<Reply, EndpointError>) -> String {
    match reply {
        Ok(reply) if reply.is_success() => "not understood".into(),
        Ok(reply) => format!("status {}", reply.status),
        Err(EndpointError::Silent { .. }) => "no answer in time".into(),
        Err(EndpointError::TooLong { .. }) => "too long".into(),
        Err(_) => "connection failed".into(),
    }
}

fn served_models(reply: &Reply) -> Vec<ServedModel> {
    let document = reply.json().unwrap_or_default();
    let listed = document.get("data").and_then(|data| data.as_array()).into_iter().flatten();
    listed.take(MAX_MODELS).filter_map(replies::served_model).collect()
}

/// Ollama says of a model by name what it says of no other; it has no list of what is in effect.
async fn ask_ollama(endpoint: &Endpoint, probe: &mut Probe) {
    let Some(model) = probe.models.first() else { return };
    let path = "/api/show";
    let reply = endpoint.post(path, &json!({ "model": model.id })).await;
    match reply.as_ref().ok().and_then(replies::ollama_model) {
        Some(facts) => probe.sources.push((path.to_owned(), facts)),
        None => probe.silent.push((path.to_owned(), outcome(&reply))),
    }
}
