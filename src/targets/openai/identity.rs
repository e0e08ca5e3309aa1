//! Whether it is still the same server: what replies say of themselves may not change within a run.

use std::sync::{Mutex, PoisonError};

use crate::targets::openai::served::Served;
use crate::targets::openai::{Dialect, EndpointError};

/// What was seen of a server, and the first change: after it nothing of this arm counts.
pub(super) struct Identity {
    requested_model: String,
    dialect: Dialect,
    is_change_allowed: bool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    model: Option<String>,
    fingerprint: Option<String>,
    change: Option<EndpointError>,
}

impl Identity {
    pub(super) fn new(served: &Served, is_change_allowed: bool) -> Self {
        let (requested_model, dialect) = (served.model.clone(), served.dialect);
        Self { requested_model, dialect, is_change_allowed, seen: Mutex::default() }
    }

    pub(super) fn fingerprint(&self) -> Option<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).fingerprint.clone()
    }

    /// The change that was seen, if any.
    pub(super) fn check(&self) -> Result<(), EndpointError> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.change.clone().map_or(Ok(()), Err)
    }

    /// Compares what a reply says of itself with what was said before.
    pub(super) fn take_reply(&self, model: Option<&str>, fingerprint: Option<&str>) -> Result<(), EndpointError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = model {
            let is_known = seen.model.as_deref().map_or_else(|| self.is_requested(now), |model| model == now);
            if !is_known {
                let before = seen.model.clone().unwrap_or_else(|| self.requested_model.clone());
                return seen.change("model", before, now);
            }
            seen.model = Some(now.to_owned());
        }
        match (fingerprint, seen.fingerprint.clone()) {
            (Some(now), Some(before)) if now != before && !self.is_change_allowed => {
                seen.change("system_fingerprint", before, now)
            }
            (Some(now), None) => {
                seen.fingerprint = Some(now.to_owned());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Compares the version of a server that was away for a while with what it was.
    pub(super) fn take_version(&self, before: &str, now: &str) -> Result<(), EndpointError> {
        if before == now || self.is_change_allowed {
            return Ok(());
        }
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).change("version", before.to_owned(), now)
    }

    /// Whether a reply of this name is one of the model asked for.
    fn is_requested(&self, name: &str) -> bool {
        match self.dialect {
            // One process serves one model under whatever name; later replies must keep the first one's.
            Dialect::LlamaCpp => true,
            // A name stands for its latest dated release.
            Dialect::Openai => name.starts_with(&self.requested_model),
            // Tags and paths are written out.
            Dialect::Ollama => name.starts_with(&self.requested_model) || self.requested_model.starts_with(name),
            _ => name == self.requested_model,
        }
    }
}

impl Seen {
    fn change(&mut self, what: &'static str, before: String, now: &str) -> Result<(), EndpointError> {
        let change = EndpointError::IdentityChanged { what, before, now: now.to_owned() };
        Err(self.change.get_or_insert(change).clone())
    }
}
