//! What every HTTP client of this crate has in common: whom it trusts, what counts as this machine, and how a failure is told.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use reqwest::Url;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Trusts the public authorities, and those of the PEM file `ca_file` besides.
///
/// # Errors
/// The reason, when the file cannot be read as certificates.
pub(crate) fn tls_config(ca_file: Option<&Path>) -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca_file {
        let unreadable = |error: rustls::pki_types::pem::Error| format!("{}: {error}", path.display());
        let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
        let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        // System bundles hold a few certificates that no verifier takes; those are left out, as everywhere.
        roots.add_parsable_certificates(certificates);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth())
}

/// Whether an address is on this machine, so that no proxy may stand between.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The error and its causes, each once, without the address: that may be signed or hold a password.
pub(crate) fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_told_from_others() {
        for (url, expected) in [
            ("http://localhost:8000/v1", true),
            ("http://127.0.0.1", true),
            ("http://[::1]:80", true),
            ("http://127.0.0.1.example.com", false),
            ("http://localhost.example.com", false),
            ("http://10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
        }
    }

    #[test]
    fn a_file_that_holds_no_certificate_is_named() {
        let reason = tls_config(Some(Path::new("absent.pem"))).unwrap_err();
        assert!(reason.starts_with("absent.pem: "), "{reason}");
    }
}
