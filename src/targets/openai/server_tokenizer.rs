//! The server's own tokenizer as a counter, for models whose files are not at hand.
//!
//! A counter is asked in the middle of synchronous code that may run on an async runtime, so its requests are made by a thread
//! with a runtime of its own. What is counted is remembered, within bounds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use serde_json::{Value, json};

use crate::targets::TargetError;
use crate::targets::openai::connection::Connection;
use crate::targets::openai::served::Served;
use crate::targets::openai::{Dialect, EndpointError, EndpointSettings};
use crate::tokenizer::{TokenCounter, UNCOUNTABLE_TOKENS};

/// Remembered counts, each a hash and a number: some 6 MiB. A full memory forgets everything; what is in use comes back.
const MAX_REMEMBERED: usize = 100_000;

/// Counts tokens by asking `/tokenize` of vLLM, SGLang or llama.cpp.
pub struct ServerTokenizer {
    requests: mpsc::Sender<Request>,
    counts: Mutex<HashMap<[u8; 32], usize>>,
    fingerprint: String,
}

struct Request {
    question: Question,
    reply: mpsc::Sender<Result<usize, EndpointError>>,
}

enum Question {
    Text(String),
    Chat(Vec<(String, String)>),
}

/// What the thread needs to ask.
struct Asker {
    connection: Connection,
    served: Served,
    settings: Arc<EndpointSettings>,
}

impl ServerTokenizer {
    /// Connects to the first address of `settings`; its engine must have a tokenizer to ask. Blocks until it answers.
    ///
    /// # Errors
    /// [`TargetError::Endpoint`] where the server does not answer or cannot count.
    pub fn connect(settings: EndpointSettings) -> Result<Self, TargetError> {
        Self::connect_with(settings, &|name| std::env::var(name).ok())
    }

    /// [`connect`](Self::connect) with the values of variables from `variable`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(
        settings: EndpointSettings,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, TargetError> {
        settings.check()?;
        let settings = Arc::new(settings);
        let connection = Connection::new(Arc::clone(&settings), variable)?;
        let (ready, opened) = mpsc::channel();
        let (requests, asked) = mpsc::channel();
        let thread = std::thread::Builder::new().name("server tokenizer".into());
        thread
            .spawn(move || serve(connection, settings, &ready, &asked))
            .map_err(|error| failed(&error.to_string()))?;
        let fingerprint = opened.recv().map_err(|_| failed("its thread ended"))??;
        Ok(Self { requests, counts: Mutex::default(), fingerprint })
    }

    /// Tokens of `text` without BOS.
    ///
    /// # Errors
    /// [`TargetError::Endpoint`] where the server does not answer.
    pub fn try_count(&self, text: &str) -> Result<usize, TargetError> {
        let key = blake3::hash(text.as_bytes());
        self.remembered(key.into(), || Question::Text(text.to_owned()))
    }

    /// Tokens of a rendered conversation.
    ///
    /// # Errors
    /// [`TargetError::Endpoint`] where the server does not answer.
    pub fn try_count_chat(&self, messages: &[(&str, &str)]) -> Result<usize, TargetError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"chat");
        for (role, content) in messages {
            for part in [role, content] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
            }
        }
        let owned = || messages.iter().map(|(role, content)| ((*role).to_owned(), (*content).to_owned())).collect();
        self.remembered(hasher.finalize().into(), || Question::Chat(owned()))
    }

    fn remembered(&self, key: [u8; 32], question: impl FnOnce() -> Question) -> Result<usize, TargetError> {
        let lock = || self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = lock().get(&key) {
            return Ok(*count);
        }
        let (reply, answer) = mpsc::channel();
        self.requests.send(Request { question: question(), reply }).map_err(|_| failed("its thread ended"))?;
        let count = answer.recv().map_err(|_| failed("its thread ended"))??;
        let mut counts = lock();
        if counts.len() >= MAX_REMEMBERED {
            counts.clear();
        }
        counts.insert(key, count);
        Ok(count)
    }
}

fn failed(reason: &str) -> TargetError {
    TargetError::Tokenizer(format!("the server's tokenizer cannot be asked: {reason}"))
}

/// The thread: connects, says so, and answers until nobody asks any more.
fn serve(
    connection: Connection,
    settings: Arc<EndpointSettings>,
    ready: &mpsc::Sender<Result<String, EndpointError>>,
    asked: &mpsc::Receiver<Request>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(EndpointError::Transport { attempts: 0, reason: error.to_string() }));
            return;
        }
    };
    let asker = match runtime.block_on(Asker::open(connection, settings)) {
        Ok((asker, fingerprint)) => {
            let _ = ready.send(Ok(fingerprint));
            asker
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    for Request { question, reply } in asked {
        // Whoever asked may have given up.
        let _ = reply.send(runtime.block_on(asker.count(&question)));
    }
}

impl Asker {
    async fn open(connection: Connection, settings: Arc<EndpointSettings>) -> Result<(Self, String), EndpointError> {
        let served = Served::ask(&connection, &settings).await?;
        let asker = Self { connection, served, settings };
        // Counts and what surrounds a conversation tell tokenizers and templates apart as far as a server lets one see.
        const PROBE: &str = "Copper lantern 水车 17:45\n\n\t{\"a\": [1, 2]} naïve";
        let text = asker.count(&Question::Text(PROBE.into())).await?;
        let user = asker.count(&Question::Chat(vec![("user".into(), PROBE.into())])).await?;
        let fingerprint = format!("server {} {} {text} {user}", asker.served.dialect, asker.served.model);
        Ok((asker, fingerprint))
    }

    async fn count(&self, question: &Question) -> Result<usize, EndpointError> {
        let body = match self.served.dialect {
            Dialect::Vllm | Dialect::Sglang => self.openai_body(question),
            Dialect::LlamaCpp => self.llama_cpp_body(question).await?,
            dialect => return Err(EndpointError::Unsupported { dialect, what: "tokenize" }),
        };
        let reply = self.connection.post_for_facts("/tokenize", &body).await?;
        let count = reply["count"].as_u64().map(|count| count as usize);
        count.or_else(|| reply["tokens"].as_array().map(Vec::len)).ok_or_else(|| self.unreadable("tokens"))
    }

    fn openai_body(&self, question: &Question) -> Value {
        let model = &self.served.model;
        match question {
            Question::Text(text) => json!({"model": model, "prompt": text, "add_special_tokens": false}),
            Question::Chat(messages) => {
                let mut body = json!({"model": model, "messages": chat(messages), "add_generation_prompt": true});
                if !self.settings.chat_template_kwargs.is_empty() {
                    body["chat_template_kwargs"] = self.settings.chat_template_kwargs.clone().into();
                }
                body
            }
        }
    }

    /// Text as it stands in a prompt: special tokens in it are tokens. A conversation is rendered first, and begins with BOS.
    async fn llama_cpp_body(&self, question: &Question) -> Result<Value, EndpointError> {
        match question {
            Question::Text(text) => Ok(json!({"content": text, "add_special": false, "parse_special": true})),
            Question::Chat(messages) => {
                let mut body = json!({"messages": chat(messages)});
                if !self.settings.chat_template_kwargs.is_empty() {
                    body["chat_template_kwargs"] = self.settings.chat_template_kwargs.clone().into();
                }
                let reply = self.connection.post_for_facts("/apply-template", &body).await?;
                let prompt = reply["prompt"].as_str().ok_or_else(|| self.unreadable("prompt"))?;
                Ok(json!({"content": prompt, "add_special": true, "parse_special": true}))
            }
        }
    }

    fn unreadable(&self, field: &str) -> EndpointError {
        let reason = format!("`{field}` is missing in the tokenizer's reply");
        EndpointError::NotAnAnswer { reason, partial: crate::targets::openai::Partial::default() }
    }
}

fn chat(messages: &[(String, String)]) -> Value {
    messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

impl TokenCounter for ServerTokenizer {
    fn count(&self, text: &str) -> usize {
        if text.is_empty() { 0 } else { self.try_count(text).unwrap_or(UNCOUNTABLE_TOKENS) }
    }

    fn count_chat(&self, messages: &[(&str, &str)]) -> usize {
        self.try_count_chat(messages).unwrap_or(UNCOUNTABLE_TOKENS)
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }
}
