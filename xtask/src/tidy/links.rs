//! Links between the documents lead somewhere, and so do the paths that ARCHITECTURE.md names.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::Violation;
use super::snapshot::Snapshot;

const CODE_MAP: &str = "ARCHITECTURE.md";
/// What lists the documents.
const CONTENTS: &str = "docs/README.md";

/// Finds links, anchors and paths that lead nowhere.
#[must_use]
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let documents: BTreeMap<&str, Document> =
        snapshot.texts_ending_in(".md").map(|(path, text)| (path, Document::read(text))).collect();
    let mut violations = Vec::new();
    for (path, document) in &documents {
        for (line, link) in &document.links {
            if let Some(complaint) = complaint(snapshot, &documents, path, link) {
                violations.push(Violation::at(path, *line, complaint));
            }
        }
    }
    if let Some(document) = documents.get(CODE_MAP) {
        for (line, code) in &document.inline_code {
            if path_of(code).is_some_and(|path| !snapshot.paths.contains(path.trim_end_matches('/'))) {
                violations.push(Violation::at(CODE_MAP, *line, format!("`{code}` does not exist")));
            }
        }
    }
    violations
}

/// Finds documents that a newcomer would not hear of.
#[must_use]
pub fn check_contents(snapshot: &Snapshot) -> Vec<Violation> {
    let mut unlisted: BTreeSet<String> = snapshot
        .texts_ending_in(".md")
        .filter(|(path, _)| path.starts_with("docs/") && *path != CONTENTS)
        .map(|(path, _)| path.to_owned())
        .collect();
    let mut documents = snapshot.texts_ending_in(".md");
    let Some((_, contents)) = documents.find(|(path, _)| *path == CONTENTS) else { return Vec::new() };
    for (_, link) in Document::read(contents).links {
        let target = link.split('#').next().unwrap_or_default();
        resolve(CONTENTS, target).inspect(|path| _ = unlisted.remove(path));
    }
    let told = |path: String| Violation::at(CONTENTS, 1, format!("`{path}` is not listed"));
    unlisted.into_iter().map(told).collect()
}

/// The path that code in the map is, seen from the root: `crates/ob-core`, or `ob-core/src/dma.rs`.
fn path_of(code: &str) -> Option<Cow<'_, str>> {
    let is_below_crates = code.contains('/') && (code.starts_with("ob-") || code.starts_with("outboard/"));
    if code.starts_with("crates/") || code.starts_with("docs/") {
        Some(code.into())
    } else {
        is_below_crates.then(|| format!("crates/{code}").into())
    }
}

fn complaint(
    snapshot: &Snapshot,
    documents: &BTreeMap<&str, Document>,
    from: &str,
    link: &str,
) -> Option<String> {
    if has_scheme(link) {
        return None;
    }
    let (target, anchor) =
        link.split_once('#').map_or((link, None), |(target, anchor)| (target, Some(anchor)));
    let Some(path) = resolve(from, target) else {
        return Some(format!("`{link}` leads out of the repository"));
    };
    if !snapshot.paths.contains(&path) {
        return Some(format!("`{link}` leads to `{path}`, which does not exist"));
    }
    // Anchors in other kinds of files (line numbers) are the viewer's own.
    let document = documents.get(path.as_str())?;
    let anchor = anchor?;
    (!document.anchors.contains(anchor)).then(|| format!("`{link}`: `{path}` has no heading for `#{anchor}`"))
}

fn has_scheme(link: &str) -> bool {
    let scheme = link.split(['/', '#', '?']).next().unwrap_or_default();
    scheme.contains(':') || link.starts_with("//")
}

/// The path that a link means, seen from the root; nothing when it climbs out of it.
fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').collect(),
    };
    // The document's own name.
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// What a Markdown text holds that can lead somewhere or be led to, with lines.
#[derive(Debug, Default)]
struct Document {
    links: Vec<(usize, String)>,
    inline_code: Vec<(usize, String)>,
    anchors: BTreeSet<String>,
}

impl Document {
    fn read(text: &str) -> Self {
        let mut document = Self::default();
        let mut heading: Option<String> = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = text[..range.start].matches('\n').count() + 1;
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => document.add_heading(&heading.take().unwrap_or_default()),
                Event::Text(words) => heading.iter_mut().for_each(|heading| heading.push_str(&words)),
                Event::Code(code) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&code));
                    document.inline_code.push((line, code.into_string()));
                }
                Event::Html(html) | Event::InlineHtml(html) => document.anchors.extend(html_anchors(&html)),
                _ => {}
            }
        }
        document
    }

    /// Headings of one name are told apart by a number, from the second on.
    fn add_heading(&mut self, heading: &str) {
        let slug = slug(heading);
        let mut anchor = slug.clone();
        let mut repeat = 0;
        while !self.anchors.insert(anchor) {
            repeat += 1;
            anchor = format!("{slug}-{repeat}");
        }
    }
}

/// The anchor that GitHub makes of a heading.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// The anchors that a piece of HTML sets: `<a id="here">`, `<a name="here">`.
fn html_anchors(html: &str) -> Vec<String> {
    let named = ["id=\"", "name=\""].into_iter().flat_map(|mark| html.split(mark).skip(1));
    named.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(texts: &[(&str, &str)]) -> Vec<String> {
        check(&Snapshot::of(texts)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let readme = "# Out-board, `v1`!\n# Same\n# Same\n<a id=\"here\"></a>\n\n\
            [a](docs/ring.md) [b](docs/ring.md#the-ring_s-order) [c](#out-board-v1) [d](docs) [e](docs/) [f](#same-1)\n\
            [g](https://example.org/x#y) [h](mailto:a@example.org) [i](#here) [j](src/lib.rs#L10) [k]\n\n\
            ```\n[not](a-link.md)\n```\n\n[k]: docs/ring.md\n";
        let ring = "## The ring_s order\n[back](../README.md) [self](ring.md) [root](/README.md)";
        let found = messages(&[("README.md", readme), ("docs/ring.md", ring), ("src/lib.rs", "")]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        for (link, complaint) in [
            ("docs/gone.md", "which does not exist"),
            ("#gone", "has no heading for `#gone`"),
            ("docs/ring.md#gone", "`docs/ring.md` has no heading"),
            ("../outside.md", "leads out of the repository"),
            ("./docs/../gone.png", "leads to `gone.png`"),
        ] {
            let readme = format!("# Here\n\ntext ![image]({link})\n");
            let found = messages(&[("README.md", &readme), ("docs/ring.md", "# Ring\n")]);
            assert_eq!(found.len(), 1, "{link}: {found:?}");
            assert!(found[0].starts_with("README.md:3: ") && found[0].contains(complaint), "{found:?}");
        }
    }

    #[test]
    fn links_defined_elsewhere_are_checked() {
        assert_eq!(messages(&[("README.md", "[text][ring]\n\n[ring]: gone.md\n")]).len(), 1);
    }

    #[test]
    fn documents_that_nobody_would_hear_of_are_found() {
        let unlisted = |contents: &str| -> Vec<String> {
            let texts =
                [(CONTENTS, contents), ("docs/wire/ring.md", ""), ("docs/ring.md", ""), ("README.md", "")];
            check_contents(&Snapshot::of(&texts)).iter().map(ToString::to_string).collect()
        };
        assert_eq!(unlisted("[one](ring.md#begin) [other](wire/ring.md)"), Vec::<String>::new());
        assert_eq!(
            unlisted("[one](ring.md), `wire/ring.md`"),
            ["docs/README.md:1: `docs/wire/ring.md` is not listed"]
        );
        assert_eq!(check_contents(&Snapshot::of(&[("docs/ring.md", "")])).len(), 0);
    }

    #[test]
    fn paths_in_the_code_map_must_exist() {
        let map = "The rings: `crates/ob-ring`, `crates/ob-ring/src/`, `ob-ring/src/lib.rs`, `ob-ring`.\n\n\
                   - `crates/ob-gone`, `cargo test`, `docs/wire/gone.md`, `ob-ring/src/gone.rs`\n";
        let files = [("crates/ob-ring/src/lib.rs", ""), (CODE_MAP, map)];
        let found = messages(&files);
        assert_eq!(
            found,
            [
                "ARCHITECTURE.md:3: `crates/ob-gone` does not exist",
                "ARCHITECTURE.md:3: `docs/wire/gone.md` does not exist",
                "ARCHITECTURE.md:3: `ob-ring/src/gone.rs` does not exist"
            ]
        );
        assert_eq!(
            messages(&[("README.md", map)]),
            Vec::<String>::new(),
            "only the code map makes this promise"
        );
    }
}
