//! Chat templates: the Jinja program that travels with a model, run with limits.
//!
//! The environment is the one `apply_chat_template` of Hugging Face transformers gives a template: `trim_blocks`,
//! `lstrip_blocks`, loop controls, Python's string methods, `raise_exception`, `strftime_now`, a `tojson` that escapes nothing
//! for HTML, and `tools` and `documents` defined as none. Two things differ on purpose:
//!
//! * `strftime_now` always tells [`TEMPLATE_DATE`], because a prompt that changes overnight breaks pairing and resume.
//! * `{% generation %}` (which marks what to train on) is a block without effect.

use std::fmt::Write as _;
use std::io::{self, Write};

use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, context};

use crate::tokenizer::TokenizerError;

/// Real templates have up to some 20 kB (tool descriptions); 1 MiB leaves room and stops a wrong file.
pub(crate) const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// A million tokens of English are about 5 MiB of text; beyond this the template is running away.
pub(crate) const MAX_RENDERED_BYTES: usize = 64 << 20;
/// One unit per instruction and per 64 bytes of data: enough for [`MAX_RENDERED_BYTES`] handled several times over.
const FUEL: u64 = 20_000_000;
/// Templates nest a few loops and macros; the engine's own cap is 500.
const RECURSION_LIMIT: usize = 200;
/// What `strftime_now` tells, as (year, month, day): the date that Llama 3 templates fall back to without a clock.
pub const TEMPLATE_DATE: (u16, u8, u8) = (2024, 7, 26);

const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    hash: String,
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`TokenizerError::TemplateTooLarge`] and [`TokenizerError::TemplateSyntax`].
    pub fn new(source: &str) -> Result<Self, TokenizerError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TokenizerError::TemplateTooLarge { got: source.len(), limit: MAX_TEMPLATE_BYTES });
        }
        let mut environment = Environment::new();
        let mut syntax = minijinja::syntax::SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build().map_err(|error| syntax_error(&error))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", strftime_fixed);
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(NAME, neutral_generation_blocks(source))
            .map_err(|error| syntax_error(&error))?;
        Ok(Self { environment, hash: blake3::hash(source.as_bytes()).to_hex().to_string() })
    }

    /// The prompt text for `messages` (`(role, content)`); `bos` and `eos` are the token texts the template may write.
    ///
    /// # Errors
    /// [`TokenizerError::Render`] with the template's own message, or the limit it hit.
    pub fn render(
        &self,
        messages: &[(&str, &str)],
        add_generation_prompt: bool,
        bos: &str,
        eos: &str,
    ) -> Result<String, TokenizerError> {
        let messages: Vec<Value> =
            messages.iter().map(|(role, content)| context! { role => *role, content => *content }).collect();
        let variables = context! {
            messages => messages,
            add_generation_prompt => add_generation_prompt,
            bos_token => bos,
            eos_token => eos,
            tools => Value::from(()),
            documents => Value::from(()),
        };
        let mut output = CappedOutput { bytes: Vec::new() };
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(variables, &mut output).map(drop))
            .map_err(|error| TokenizerError::Render { reason: render_reason(&error) })?;
        String::from_utf8(output.bytes).map_err(|_| TokenizerError::Render { reason: "its output is not UTF-8".into() })
    }

    /// BLAKE3 of the template's source, in hex.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

fn syntax_error(error: &Error) -> TokenizerError {
    TokenizerError::TemplateSyntax { reason: render_reason(error) }
}

/// The error in one line, without the template's source.
fn render_reason(error: &Error) -> String {
    if error.kind() == ErrorKind::WriteFailure {
        return format!("it writes more than {MAX_RENDERED_BYTES} bytes");
    }
    let mut reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line() {
        let _ = write!(reason, " (line {line})");
    }
    reason
}

/// Refuses to grow beyond [`MAX_RENDERED_BYTES`].
struct CappedOutput {
    bytes: Vec<u8>,
}

impl Write for CappedOutput {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + piece.len() > MAX_RENDERED_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "rendered prompt too large"));
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Turns `{% generation %} … {% endgeneration %}` into `{% if true %} … {% endif %}`, which keeps every rule of white space.
fn neutral_generation_blocks(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        result.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(close + 2);
        let word = tag[2..close].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => result.push_str(&tag.replacen(word, "if true", 1)),
            "endgeneration" => result.push_str(&tag.replacen(word, "endif", 1)),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

/// C's `strftime` on [`TEMPLATE_DATE`] at midnight, for the fields that date lines are made of.
fn strftime_fixed(format: &str) -> Result<String, Error> {
    const MONTH: &str = "July";
    const WEEKDAY: &str = "Friday"; // of 2024-07-26
    const DAY_OF_YEAR: u16 = 208;
    let (year, month, day) = TEMPLATE_DATE;
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        // Writing to a String cannot fail.
        let _ = match characters.next() {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{:02}", year % 100),
            Some('m') => write!(text, "{month:02}"),
            Some('d') => write!(text, "{day:02}"),
            Some('e') => write!(text, "{day:2}"),
            Some('j') => write!(text, "{DAY_OF_YEAR:03}"),
            Some('B') => write!(text, "{MONTH}"),
            Some('b' | 'h') => write!(text, "{}", &MONTH[..3]),
            Some('A') => write!(text, "{WEEKDAY}"),
            Some('a') => write!(text, "{}", &WEEKDAY[..3]),
            Some('F') => write!(text, "{year}-{month:02}-{day:02}"),
            Some('H' | 'M' | 'S') => write!(text, "00"),
            Some('I') => write!(text, "12"),
            Some('p') => write!(text, "AM"),
            Some('T') => write!(text, "00:00:00"),
            Some('Z') => write!(text, "UTC"),
            Some('z') => write!(text, "+0000"),
            Some('%') => write!(text, "%"),
            other => {
                let field = other.map(String::from).unwrap_or_default();
                return Err(Error::new(ErrorKind::InvalidOperation, format!("strftime_now: no field `%{field}`")));
            }
        };
    }
    Ok(text)
}

/// Python's `json.dumps(value, ensure_ascii=False)`: a space after `,` and `:` and nothing escaped for HTML.
fn to_json(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    if let Some(indent) = indent {
        // Nobody reads JSON indented by more; a template could ask for gigabytes of spaces.
        let spaces = vec![b' '; indent.min(16)];
        let formatter = serde_json::ser::PrettyFormatter::with_indent(&spaces);
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
        serde::Serialize::serialize(&Serde(&value).0, &mut serializer).map_err(failed)?;
    } else {
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, PythonSpacing);
        serde::Serialize::serialize(&Serde(&value).0, &mut serializer).map_err(failed)?;
    }
    let text = String::from_utf8(bytes).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(text))
}

struct PythonSpacing;

impl serde_json::ser::Formatter for PythonSpacing {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::Hint;

    fn render(source: &str, messages: &[(&str, &str)]) -> Result<String, TokenizerError> {
        ChatTemplate::new(source)?.render(messages, true, "<s>", "</s>")
    }

    #[test]
    fn white_space_follows_the_rules_of_transformers() {
        let source =
            "{{ bos_token }}\n  {% for m in messages %}\n{{ m.role }}: {{ m['content'].strip() }}\n  {% endfor %}\n";
        assert_eq!(render(source, &[("user", " hi "), ("assistant", "yo")]).unwrap(), "<s>\nuser: hi\nassistant: yo\n");
    }

    #[test]
    fn generation_tags_are_without_effect() {
        let source = "{% for m in messages %}[{%- generation -%} {{ m.content }} {% endgeneration %}]\n{% endfor %}";
        assert_eq!(render(source, &[("user", "x")]).unwrap(), "[x ]\n");
        let untouched = "{{ 'generation' }}{% if add_generation_prompt %}generation{% endif %}";
        assert_eq!(neutral_generation_blocks(untouched), untouched);
        assert_eq!(neutral_generation_blocks("a {% open"), "a {% open");
    }

    #[test]
    fn raise_exception_gives_its_own_words() {
        let error = render("{{ raise_exception('System role not supported') }}", &[]).unwrap_err();
        assert!(matches!(&error, TokenizerError::Render { reason } if reason.starts_with("System role not supported")));
        assert!(!error.hints().is_empty());
    }

    #[test]
    fn the_date_stands_still() {
        assert_eq!(render("{{ strftime_now('%d %b %Y, %A') }}", &[]).unwrap(), "26 Jul 2024, Friday");
        assert!(render("{{ strftime_now('%Q') }}", &[]).is_err());
    }

    #[test]
    fn json_looks_like_pythons_and_escapes_nothing() {
        let source = "{{ {'a': [1, 2], 'b': '<ü&\\''} | tojson }}";
        assert_eq!(render(source, &[]).unwrap(), r#"{"a": [1, 2], "b": "<ü&'"}"#);
        assert_eq!(render("{{ {'a': 1} | tojson(indent=2) }}", &[]).unwrap(), "{\n  \"a\": 1\n}");
    }

    #[test]
    fn content_is_never_escaped_nor_run() {
        let content = "<b>&'\"</b> {{ 7 * 7 }} {% raw %}";
        assert_eq!(render("{{ messages[0].content }}", &[("user", content)]).unwrap(), content);
    }

    #[test]
    fn endless_templates_hit_a_limit() {
        let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}";
        assert!(matches!(render(loops, &[]), Err(TokenizerError::Render { .. })));
        let huge = "{% for a in range(10000) %}{{ 'x' * 100000 }}{% endfor %}";
        assert!(matches!(render(huge, &[]), Err(TokenizerError::Render { .. })));
        let recursive = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
        assert!(matches!(render(recursive, &[]), Err(TokenizerError::Render { .. })));
    }

    #[test]
    fn output_is_capped_whatever_the_fuel_says() {
        let mut output = CappedOutput { bytes: vec![0; MAX_RENDERED_BYTES - 1] };
        assert!(output.write_all(b"x").is_ok());
        assert_eq!(output.write_all(b"y").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_broken_or_absurd_template_is_refused_when_it_is_loaded() {
        assert!(matches!(ChatTemplate::new("{% for %}"), Err(TokenizerError::TemplateSyntax { .. })));
        let long = "x".repeat(MAX_TEMPLATE_BYTES + 1);
        assert!(matches!(ChatTemplate::new(&long), Err(TokenizerError::TemplateTooLarge { .. })));
    }
}
