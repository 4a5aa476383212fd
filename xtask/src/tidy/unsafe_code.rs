//! Unsafe code lives in a few crates, and each use of it says why it is sound.
//!
//! Clippy looks for the comments too, but only in code that the present configuration compiles. This check reads tokens,
//! so it sees what stands behind `cfg(loom)`, behind another architecture, and within macros.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Violation;
use super::snapshot::Snapshot;
use crate::miri;

/// The crates that may use unsafe code, each with what it cannot do otherwise.
pub const HOMES: &[(&str, &str)] = &[
    (
        "ob-memory",
        "maps regions that the other half writes at any time, and hands out parts of registered buffers",
    ),
    ("ob-table", "readers that never wait look at buckets while the writer moves them"),
    ("ob-ebpf", "runs compiled programs, and gives them memory by address"),
    ("outboard-program", "is given memory by address on the card, and calls the card's helpers"),
    ("ob-io", "hands buffers to the kernel (io_uring) for as long as an operation is in flight"),
    (
        "ob-passthrough",
        "gives the kernel commands that carry addresses, and asks it for leases, which only libc has",
    ),
    ("ob-link", "receives regions by file descriptor and maps them"),
    ("liboutboard", "is called from C, with pointers to memory that the caller owns"),
];

/// Homes that neither loom nor Miri looks at, each with the reason.
const UNCHECKED: &[(&str, &str)] = &[
    ("ob-ebpf", "Miri can neither map nor call native code; compiled code is compared with the interpreter"),
    ("outboard-program", "it runs where programs do, and is tested by them"),
    ("ob-io", "Miri does not know io_uring; its tests drop everything with operations in flight"),
    ("ob-passthrough", "Miri knows neither io_uring nor ioctls; its tests drop rings with buffers in flight"),
    ("ob-link", "Miri knows no memory files and no futex; raw memory is behind the types of ob-memory"),
    ("liboutboard", "it is called from C; a C program calls every function"),
];

/// Finds homes that nothing checks and nobody explains, and explanations that are outdated.
#[must_use]
pub fn check_homes(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (home, _) in HOMES {
        let Some(package) = snapshot.packages.iter().find(|package| package.name == *home) else { continue };
        let has_loom = snapshot.paths.contains(&format!("{}/tests/loom.rs", package.folder));
        let is_checked = has_loom || miri::PACKAGES.contains(home);
        let message = match (is_checked, UNCHECKED.iter().any(|(unchecked, _)| unchecked == home)) {
            (false, false) => {
                "is a home of unsafe that neither loom (tests/loom.rs) nor Miri (PACKAGES in xtask/src/miri.rs) checks"
            }
            (true, true) => "is checked, and listed in UNCHECKED",
            _ => continue,
        };
        violations.push(Violation::of(&package.manifest(), message.to_owned()));
    }
    violations
}

/// Finds crates outside of the homes that do not forbid unsafe code.
#[must_use]
pub fn check_forbidden(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &snapshot.packages {
        if HOMES.iter().any(|(home, _)| *home == package.name) {
            continue;
        }
        for path in package.roots() {
            if !snapshot.texts.get(path).is_some_and(|text| forbids_unsafe_code(text)) {
                let message = format!(
                    "wants `#![forbid(unsafe_code)]`; a new home of unsafe is added to HOMES in {}, with its reason",
                    file!()
                );
                violations.push(Violation::of(path, message));
            }
        }
    }
    violations
}

fn forbids_unsafe_code(text: &str) -> bool {
    let forbids = |attribute: &syn::Attribute| {
        attribute.path().is_ident("forbid")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|lint| lint == "unsafe_code")
    };
    // A file that cannot be parsed is reported by the check of lengths.
    syn::parse_file(text).is_ok_and(|file| file.attrs.iter().any(forbids))
}

/// Finds uses of unsafe that do not say why they are sound, or what they ask of their callers.
#[must_use]
pub fn check_comments(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in snapshot.rust_sources() {
        // A file that is not even tokens is reported by the check of lengths.
        let Ok(tokens) = text.parse::<TokenStream>() else { continue };
        let mut uses = Vec::new();
        collect_uses(tokens, &[], &mut uses);
        let lines: Vec<&str> = text.lines().collect();
        for found in uses.iter().filter(|found| !found.is_explained(&lines)) {
            violations.push(Violation::at(path, found.line, found.kind.complaint().to_owned()));
        }
    }
    violations
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Block,
    Implementation,
    ForeignBlock,
    Function,
    Trait,
}

impl Kind {
    /// What the token `unsafe` introduces, by the tokens after it. Types (`unsafe fn(u8)`) and attributes
    /// (`#[unsafe(no_mangle)]`) claim nothing that could be explained.
    fn of(following: &[TokenTree]) -> Option<Self> {
        let is_word = |index: usize, word: &str| matches!(following.get(index), Some(TokenTree::Ident(found)) if found == word);
        let is_block = |index: usize| matches!(following.get(index), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace);
        let is_function = |index: usize| {
            is_word(index, "fn") && matches!(following.get(index + 1), Some(TokenTree::Ident(_)))
        };
        // `unsafe extern fn` and `unsafe extern "C" fn`: the calling convention's name may be left out.
        let after_convention = match (is_word(0, "extern"), following.get(1)) {
            (true, Some(TokenTree::Literal(_))) => 2,
            (true, _) => 1,
            (false, _) => 0,
        };
        if is_block(after_convention) {
            Some(if after_convention == 0 { Self::Block } else { Self::ForeignBlock })
        } else if is_function(after_convention) {
            Some(Self::Function)
        } else if is_word(0, "impl") {
            Some(Self::Implementation)
        } else if is_word(0, "trait") {
            Some(Self::Trait)
        } else {
            None
        }
    }

    fn complaint(self) -> &'static str {
        match self {
            Self::Block => "this unsafe block wants a `// SAFETY:` comment right above",
            Self::Implementation => "this unsafe impl wants a `// SAFETY:` comment right above",
            Self::ForeignBlock => "this unsafe extern block wants a `// SAFETY:` comment right above",
            Self::Function => "this unsafe fn wants a `# Safety` section in its doc",
            Self::Trait => "this unsafe trait wants a `# Safety` section in its doc",
        }
    }

    fn is_explained_by(self, comment: &str) -> bool {
        match self {
            Self::Block | Self::Implementation | Self::ForeignBlock => comment.starts_with("SAFETY:"),
            Self::Function | Self::Trait => comment == "# Safety",
        }
    }
}

struct Use {
    kind: Kind,
    line: usize,
    /// The lines where the statements begin that hold it: a comment above one of them is as good.
    statements: Vec<usize>,
}

impl Use {
    fn is_explained(&self, lines: &[&str]) -> bool {
        let mut places = self.statements.iter().chain([&self.line]);
        places
            .any(|line| comments_above(lines, *line).iter().any(|comment| self.kind.is_explained_by(comment)))
    }
}

/// `enclosing`: where the statements begin that hold these tokens, out to the nearest braces.
fn collect_uses(tokens: TokenStream, enclosing: &[usize], uses: &mut Vec<Use>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut statement = None;
    for (index, token) in tokens.iter().enumerate() {
        let line = token.span().start().line;
        let statements = [enclosing, &[*statement.get_or_insert(line)]].concat();
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                collect_uses(group.stream(), &[], uses);
                statement = None;
            }
            TokenTree::Group(group) => collect_uses(group.stream(), &statements, uses),
            TokenTree::Punct(mark) if matches!(mark.as_char(), ';' | ',') => statement = None,
            TokenTree::Ident(word) if word == "unsafe" => {
                if let Some(kind) = Kind::of(&tokens[index + 1..]) {
                    uses.push(Use { kind, line, statements });
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// The comments that end right above a line, attributes not counted, each without its slashes.
fn comments_above<'text>(lines: &[&'text str], line: usize) -> Vec<&'text str> {
    let above = lines.iter().take(line.saturating_sub(1)).rev().map(|line| line.trim());
    above
        .take_while(|line| line.starts_with("//") || line.starts_with("#["))
        .filter_map(|line| line.strip_prefix("//"))
        .map(|comment| comment.trim_start_matches(['/', '!']).trim())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::Package;
    use super::*;

    fn lines_found(text: &str) -> Vec<usize> {
        check_comments(&Snapshot::of(&[("a.rs", text)])).iter().filter_map(|found| found.line).collect()
    }

    fn forbidden(name: &str, text: &str) -> usize {
        let path = "crates/some/src/lib.rs";
        let mut snapshot = Snapshot::of(&[(path, text)]);
        let library = Some(path.to_owned());
        snapshot.packages.push(Package { name: name.to_owned(), library, ..Package::default() });
        check_forbidden(&snapshot).len()
    }

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_is_found() {
        assert_eq!(forbidden("ob-core", "//! Doc.\n#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(forbidden("ob-io", "//! Doc.\n"), 0, "a home of unsafe");
        assert_eq!(forbidden("ob-core", "//! Doc.\n"), 1);
        assert_eq!(forbidden("ob-core", "//! `#![forbid(unsafe_code)]`\n"), 1, "a comment forbids nothing");
        assert_eq!(forbidden("ob-core", "#![deny(unsafe_code)]\n"), 1, "what is denied can be allowed again");
        assert_eq!(forbidden("ob-core", "mod inner { #![forbid(unsafe_code)] }\n"), 1);
    }

    #[test]
    fn a_home_that_nothing_checks_is_found() {
        let found = |name: &str, texts: &[(&str, &str)]| {
            let mut snapshot = Snapshot::of(texts);
            let folder = format!("crates/{name}");
            snapshot.packages.push(Package { name: name.to_owned(), folder, ..Package::default() });
            check_homes(&snapshot).len()
        };
        assert_eq!(found("ob-memory", &[]), 0, "Miri runs it");
        assert_eq!(found("ob-link", &[]), 0, "there is a reason");
        assert_eq!(found("ob-link", &[("crates/ob-link/tests/loom.rs", "")]), 1, "the reason is outdated");
        assert_eq!(found("ob-kv", &[]), 0, "it is no home");
        let explained = |home: &str| UNCHECKED.iter().any(|(unchecked, _)| *unchecked == home);
        assert!(HOMES.iter().all(|(home, _)| explained(home) || miri::PACKAGES.contains(home)));
    }

    #[test]
    fn uses_without_a_word_are_found() {
        for text in [
            "fn f() { unsafe { g() } }",
            "unsafe impl Send for Ring {}",
            "unsafe extern \"C\" { fn g(); }",
            "pub unsafe fn f() {}",
            "/// Does.\nunsafe extern \"C\" fn f() {}",
            "unsafe trait Plain {}",
            "#[cfg(loom)]\nfn f() { unsafe { g() } }",
            "model! { fn f() { unsafe { g() } } }",
            "// SAFETY: too far away.\n\nunsafe impl Send for Ring {}",
            "// SAFETY: the first only.\nunsafe impl Send for Ring {}\nunsafe impl Sync for Ring {}",
            "// SAFETY: not for callers.\nunsafe fn f() {}",
            "// It is fine.\nunsafe impl Send for Ring {}",
            "fn f() {\n    // SAFETY: of the first.\n    unsafe { g() };\n    unsafe { h() };\n}",
        ] {
            assert_eq!(lines_found(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn uses_that_are_explained_pass() {
        for text in [
            "fn f() {\n    // SAFETY: alone.\n    unsafe { g() }\n}",
            "fn f() {\n    // SAFETY: alone,\n    // really.\n    let x = unsafe { g() };\n}",
            "fn f() {\n    // SAFETY: alone.\n    let x =\n        unsafe { g() };\n}",
            "fn f() {\n    // SAFETY: alone.\n    let x = h(\n        one,\n        unsafe { g() },\n    );\n}",
            "fn f() {\n    h(\n        one,\n        // SAFETY: alone.\n        unsafe { g() },\n    );\n}",
            "// SAFETY: no thread keeps it.\n#[cfg(not(loom))]\nunsafe impl Send for Ring {}",
            "// SAFETY: as the header says.\nunsafe extern \"C\" { fn g(); }",
            "/// Does.\n///\n/// # Safety\n/// Be careful.\n#[inline]\npub(crate) unsafe fn f() {}",
            "/// # Safety\n/// All bits are legal.\npub unsafe trait Plain {}",
            "type Call = unsafe extern \"C\" fn(u8);\nstruct Table { call: unsafe fn(u8) }",
            "#[unsafe(no_mangle)]\nextern \"C\" fn f() {}",
            "/// `unsafe { g() }` in a doc, and a name: unsafe_code\nfn f() {}",
        ] {
            assert_eq!(lines_found(text), Vec::<usize>::new(), "{text}");
        }
    }
}
