//! Host names of previews: one label below the domain, which is a credential or a preview's id. Must take nothing else for
//! one: a name that is not exactly below the domain leads to the API, whoever made it lead here.

use std::fmt;
use std::str::FromStr;

use http::uri::Authority;
use remuda_control::PreviewToken;
use remuda_types::PreviewId;

/// Longest name of a host, in bytes.
const NAME_BYTES_MAX: usize = 253;
/// Longest part of one between dots.
const LABEL_BYTES_MAX: usize = 63;

/// The domain that previews are below, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain(String);

/// The text is no domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it must look like localhost or preview.example.com")]
pub struct DomainError;

impl Domain {
    /// Whether it is `localhost`, whose names browsers find by themselves.
    pub fn is_localhost(&self) -> bool {
        self.0 == "localhost"
    }

    /// It, as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Domain {
    fn default() -> Self {
        Domain("localhost".to_owned())
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Domain {
    type Err = DomainError;
    fn from_str(text: &str) -> Result<Self, DomainError> {
        let label = |label: &str| {
            let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            (1..=LABEL_BYTES_MAX).contains(&label.len())
                && label.bytes().all(inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // A label in front of it must fit as well; and one of digits alone at the end is an address.
        let fits = text.len() + LABEL_BYTES_MAX < NAME_BYTES_MAX;
        let last_is_number = text.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
        if !fits || last_is_number || !text.split('.').all(label) {
            return Err(DomainError);
        }
        Ok(Domain(text.to_ascii_lowercase()))
    }
}

/// What a host name stands for.
pub(super) enum Called {
    /// A preview, by its credential.
    Token(PreviewToken),
    /// A preview, by its id.
    Id(PreviewId),
    /// A name below the domain that no preview can have.
    Unknown,
    /// Something that is not below the domain.
    Elsewhere,
}

/// What this authority stands for.
pub(super) fn called(domain: &Domain, authority: &Authority) -> Called {
    let name = authority.host().to_ascii_lowercase();
    // The same name, said to be complete.
    let name = name.strip_suffix('.').unwrap_or(&name);
    let Some(label) = name.strip_suffix(domain.as_str()).and_then(|front| front.strip_suffix('.')) else {
        return Called::Elsewhere;
    };
    if let Ok(token) = label.parse() {
        return Called::Token(token);
    }
    label.parse().map_or(Called::Unknown, Called::Id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is(text: &str) -> &'static str {
        let domain = Domain::default();
        let Ok(authority) = text.parse() else { return "none" };
        match called(&domain, &authority) {
            Called::Token(_) => "token",
            Called::Id(_) => "id",
            Called::Unknown => "unknown",
            Called::Elsewhere => "elsewhere",
        }
    }

    #[test]
    fn only_one_label_directly_below_the_domain_names_a_preview() {
        let token = "0123456789abcdef".repeat(3);
        let id = "prev-aaaaaaaaaaaaaaaaaaaa";
        for (text, expected) in [
            (format!("{token}.localhost"), "token"),
            (format!("{token}.localhost:8787"), "token"),
            (format!("{}.LOCALHOST:8787", token.to_uppercase()), "token"),
            (format!("{token}.localhost.:8787"), "token"),
            (format!("{id}.localhost:80"), "id"),
            (format!("{token}0.localhost"), "unknown"),
            (format!("{}.localhost", &token[1..]), "unknown"),
            (format!("a.{token}.localhost"), "unknown"),
            (format!("{id}x.localhost"), "unknown"),
            (".localhost".to_owned(), "unknown"),
            ("www.localhost".to_owned(), "unknown"),
            ("localhost:8787".to_owned(), "elsewhere"),
            ("127.0.0.1:8787".to_owned(), "elsewhere"),
            ("[::1]:8787".to_owned(), "elsewhere"),
            (format!("{token}.localhost.example.com"), "elsewhere"),
            (format!("{token}.notlocalhost"), "elsewhere"),
            (format!("{token}localhost"), "elsewhere"),
            (token.clone(), "elsewhere"),
        ] {
            assert_eq!(is(&text), expected, "{text}");
        }
    }

    #[test]
    fn domains_are_read_in_any_case_and_nothing_else_is() {
        assert_eq!("Preview.Example.COM".parse(), Ok(Domain("preview.example.com".into())));
        assert!("localhost".parse::<Domain>().unwrap().is_localhost());
        for wrong in ["", ".", "a.", ".a", "a..b", "-a", "a-", "a_b", "a:80", "a/b", "ä", "127.0.0.1", &"a".repeat(200)]
        {
            assert!(wrong.parse::<Domain>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_judged(text in "\\PC{0,300}") {
            let _ = is(&text);
            let _ = text.parse::<Domain>();
        }

        #[test]
        fn a_credential_is_found_only_at_its_exact_place(front in "[a-z0-9.-]{0,60}", back in "[a-z0-9.-]{0,20}") {
            let text = format!("{front}localhost{back}");
            if is(&text) == "token" {
                let label = front.strip_suffix('.').unwrap();
                prop_assert!(label.len() == 48 && label.bytes().all(|b| b.is_ascii_hexdigit()), "{text}");
                prop_assert!(back.is_empty() || back == ".", "{text}");
            }
        }
    }
}
