//! Every error code of `crates/types/src/error.rs` has a page `docs/errors/CODE.md` that tells its status, when it
//! comes, its cause and its remedy; and no page stands for a code that is gone.

use std::collections::BTreeMap;

use anyhow::Context as _;

use super::{Faults, Repository};

const SOURCE: &str = "crates/types/src/error.rs";
const PAGES: &str = "docs/errors";
/// The index of the pages, which is no page.
const INDEX: &str = "README";
const PARTS: [&str; 3] = ["**When**", "**Cause**", "**Remedy**"];

pub(super) fn check(repository: &Repository<'_>) -> anyhow::Result<Faults> {
    let codes = codes(&repository.text(SOURCE)?);
    anyhow::ensure!(!codes.is_empty(), "{SOURCE} has no codes in the form `Name = \"code\", status;`");
    let mut faults = Vec::new();
    let index = repository.text(format!("{PAGES}/{INDEX}.md"))?;
    for (code, status) in &codes {
        let page = format!("{PAGES}/{code}.md");
        match repository.text(&page) {
            Err(_) => faults.push(format!("{code} has no page: write {page}")),
            Ok(text) => faults.extend(page_faults(code, status, &text).into_iter().map(|f| format!("{page}: {f}"))),
        }
        if !index.contains(&format!("({code}.md)")) {
            faults.push(format!("{PAGES}/{INDEX}.md does not link {code}.md"));
        }
    }
    for file in repository.files.iter().filter(|f| f.starts_with(PAGES)) {
        let stem = file.file_stem().context("a file without a name")?.to_string_lossy().into_owned();
        if stem != INDEX && !codes.contains_key(&stem) {
            faults.push(format!("{}: no error has this code; remove the page or name it by its code", file.display()));
        }
    }
    Ok(faults)
}

/// Codes with their HTTP status: lines `Name = "code", 404;`.
fn codes(source: &str) -> BTreeMap<String, String> {
    let code = |line: &str| -> Option<(String, String)> {
        let (_, rest) = line.trim().strip_suffix(';')?.split_once(" = \"")?;
        let (code, status) = rest.split_once("\", ")?;
        let plain = status.len() == 3 && status.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| (code.to_owned(), status.to_owned()))
    };
    source.lines().filter_map(code).collect()
}

fn page_faults(code: &str, status: &str, page: &str) -> Faults {
    let mut faults = Vec::new();
    if page.lines().next() != Some(&format!("# {code}")) {
        faults.push(format!("its first line must be `# {code}`"));
    }
    if !page.contains(&format!("HTTP {status}.")) {
        faults.push(format!("it must say `HTTP {status}.`, which is what the server answers"));
    }
    for part in PARTS {
        if !page.lines().any(|l| l.starts_with(part) && l.len() > part.len() + 8) {
            faults.push(format!("it has no paragraph that begins with {part}"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "# bare_slot\n\nHTTP 400.\n\n**When** a slot was given.\n\n**Cause** it is one.\n\n**Remedy** give the id.\n";

    #[test]
    fn codes_are_read_with_their_status_and_nothing_else_is() {
        let source = "codes! {\n    /// Doc = \"x\", 1;\n    BareSlot = \"bare_slot\", 400;\n}\nlet x = \"y\";\n";
        assert_eq!(codes(source), BTreeMap::from([("bare_slot".to_owned(), "400".to_owned())]));
    }

    #[test]
    fn a_page_needs_title_status_and_all_parts() {
        assert_eq!(page_faults("bare_slot", "400", PAGE), Faults::new());
        assert_eq!(page_faults("bare_slot", "404", PAGE).len(), 1);
        assert_eq!(page_faults("other", "400", PAGE).len(), 1);
        assert_eq!(page_faults("bare_slot", "400", &PAGE.replace("**Remedy** give the id.", "")).len(), 1);
    }
}
