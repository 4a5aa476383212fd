//! Files to 800 lines, functions to 70, and a ratchet for those that are longer.
//!
//! `xtask/ratchet.toml` lists each exception with its length. It may not grow; when it shrinks, the number
//! must follow; and when it fits, its line goes. So the list can only get shorter, and a review sees each addition.
//!
//! Functions within a macro's call are not seen: to the parser they are tokens like any other.

use std::collections::BTreeMap;

use serde::Deserialize;
use syn::visit::{self, Visit};

use super::Violation;
use super::snapshot::{RATCHET, Snapshot};

/// The length of a file, its tests included.
pub const FILE_LINES_MAX: usize = 800;
/// The length of a function, from the line with `fn` to the closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;

/// The exceptions: path, or `path::module::Type::function`, to length.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratchet {
    #[serde(default)]
    files: BTreeMap<String, usize>,
    #[serde(default)]
    functions: BTreeMap<String, usize>,
}

/// Something that has a length and, perhaps, a line in the ratchet.
struct Measured {
    key: String,
    path: String,
    line: usize,
    length: usize,
}

/// Finds what is too long, and lines of the ratchet that are no longer true.
#[must_use]
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let ratchet = match snapshot.texts.get(RATCHET).map(|text| toml::from_str::<Ratchet>(text)) {
        None => Ratchet::default(),
        Some(Ok(ratchet)) => ratchet,
        Some(Err(error)) => return vec![Violation::of(RATCHET, format!("cannot be read: {error}"))],
    };
    let mut violations = Vec::new();
    let mut files = Vec::new();
    let mut functions = Vec::new();
    for (path, text) in snapshot.rust_sources() {
        let length = text.lines().count();
        files.push(Measured { key: path.to_owned(), path: path.to_owned(), line: 1, length });
        match functions_of(path, text) {
            Ok(found) => functions.extend(found),
            Err(error) => {
                let message = format!("cannot be parsed: {error}");
                violations.push(Violation::at(path, error.span().start().line, message));
            }
        }
    }
    violations.extend(compare("file", FILE_LINES_MAX, &files, &ratchet.files));
    violations.extend(compare("function", FUNCTION_LINES_MAX, &functions, &ratchet.functions));
    violations
}

fn compare(
    noun: &str,
    lines_max: usize,
    measured: &[Measured],
    allowed: &BTreeMap<String, usize>,
) -> Vec<Violation> {
    // Two functions may have one name (two `From` impls): the longest stands for all of them.
    let mut longest: BTreeMap<&str, &Measured> = BTreeMap::new();
    for item in measured {
        let known = longest.entry(&item.key).or_insert(item);
        if item.length > known.length {
            *known = item;
        }
    }
    let mut violations = Vec::new();
    for (key, item) in &longest {
        let length = item.length;
        let message = match allowed.get(*key) {
            None if length > lines_max => {
                format!("{noun} `{key}` has {length} lines, the limit is {lines_max}: split it")
            }
            Some(allowed) if length > *allowed => {
                format!(
                    "{noun} `{key}` has grown from {allowed} to {length} lines: {RATCHET} may not rise, split it"
                )
            }
            Some(_) if length <= lines_max => {
                format!("{noun} `{key}` fits by now ({length} lines): remove its line from {RATCHET}")
            }
            Some(allowed) if length < *allowed => {
                format!(
                    "{noun} `{key}` has shrunk from {allowed} to {length} lines: lower its number in {RATCHET}"
                )
            }
            None | Some(_) => continue,
        };
        violations.push(Violation::at(&item.path, item.line, message));
    }
    for key in allowed.keys().filter(|key| !longest.contains_key(key.as_str())) {
        violations.push(Violation::of(RATCHET, format!("{noun} `{key}` is gone: remove its line")));
    }
    violations
}

fn functions_of(path: &str, text: &str) -> syn::Result<Vec<Measured>> {
    let file = syn::parse_file(text)?;
    let mut visitor = Functions { path, scope: Vec::new(), found: Vec::new() };
    visitor.visit_file(&file);
    Ok(visitor.found)
}

struct Functions<'path> {
    path: &'path str,
    scope: Vec<String>,
    found: Vec<Measured>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let line = signature.fn_token.span.start().line;
        let length = body.brace_token.span.close().end().line - line + 1;
        let mut key = self.path.to_owned();
        for part in self.scope.iter().chain([&signature.ident.to_string()]) {
            key.push_str("::");
            key.push_str(part);
        }
        self.found.push(Measured { key, path: self.path.to_owned(), line, length });
    }

    fn within(&mut self, scope: String, visit: impl FnOnce(&mut Self)) {
        self.scope.push(scope);
        visit(self);
        self.scope.pop();
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        self.within(item.sig.ident.to_string(), |visitor| visit::visit_item_fn(visitor, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        self.within(item.sig.ident.to_string(), |visitor| visit::visit_impl_item_fn(visitor, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.measure(&item.sig, body);
        }
        self.within(item.sig.ident.to_string(), |visitor| visit::visit_trait_item_fn(visitor, item));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within(item.ident.to_string(), |visitor| visit::visit_item_mod(visitor, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(item.ident.to_string(), |visitor| visit::visit_item_trait(visitor, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.within(type_name(&item.self_ty), |visitor| visit::visit_item_impl(visitor, item));
    }
}

/// The last part of a type's path, without what it is generic over: enough to find it by.
fn type_name(of: &syn::Type) -> String {
    match of {
        syn::Type::Path(path) => {
            path.path.segments.last().map_or_else(String::new, |last| last.ident.to_string())
        }
        syn::Type::Reference(reference) => type_name(&reference.elem),
        _ => "_".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    fn messages(texts: &[(&str, &str)]) -> Vec<String> {
        check(&Snapshot::of(texts)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_may_have_800_lines_and_no_more() {
        assert_eq!(messages(&[("a.rs", &"\n".repeat(800))]), Vec::<String>::new());
        let found = messages(&[("a.rs", &"\n".repeat(801))]);
        assert_eq!(found, ["a.rs:1: file `a.rs` has 801 lines, the limit is 800: split it"]);
    }

    #[test]
    fn a_function_may_have_70_lines_and_no_more_wherever_it_stands() {
        let fits = function("fits", 70);
        assert_eq!(messages(&[("a.rs", &fits)]), Vec::<String>::new());
        let long = function("long", 71);
        for (text, key) in [
            (long.clone(), "a.rs::long"),
            (format!("mod tests {{ #[test]\n{long} }}"), "a.rs::tests::long"),
            (format!("impl<T> fmt::Debug for Ring<T> {{ {long} }}"), "a.rs::Ring::long"),
            (format!("trait Dma {{ {long} }}"), "a.rs::Dma::long"),
            (format!("#[cfg(loom)]\nmod model {{ {long} }}"), "a.rs::model::long"),
        ] {
            let found = messages(&[("a.rs", &text)]);
            assert_eq!(found.len(), 1, "{key}: {found:?}");
            assert!(
                found[0].contains(&format!("function `{key}` has 71 lines, the limit is 70")),
                "{found:?}"
            );
        }
    }

    #[test]
    fn docs_and_attributes_do_not_count() {
        let text = format!("{}#[inline]\n{}", "/// Why.\n".repeat(30), function("documented", 70));
        assert_eq!(messages(&[("a.rs", &text)]), Vec::<String>::new());
    }

    #[test]
    fn the_ratchet_turns_one_way_only() {
        let long = function("long", 80);
        for (allowed, complaint) in [(79, "has grown from 79 to 80"), (81, "lower its number")] {
            let ratchet = format!("[functions]\n\"a.rs::long\" = {allowed}\n");
            let found = messages(&[("a.rs", &long), (RATCHET, &ratchet)]);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(complaint), "{found:?}");
        }
        let exact = "[functions]\n\"a.rs::long\" = 80\n";
        assert_eq!(messages(&[("a.rs", &long), (RATCHET, exact)]), Vec::<String>::new());
    }

    #[test]
    fn lines_of_the_ratchet_that_are_not_needed_must_go() {
        let ratchet = "[files]\n\"a.rs\" = 900\n\"gone.rs\" = 900\n";
        let found = messages(&[("a.rs", "fn short() {}\n"), (RATCHET, ratchet)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("fits by now"), "{found:?}");
        assert!(found[1].contains("`gone.rs` is gone"), "{found:?}");
    }

    #[test]
    fn a_broken_ratchet_and_a_broken_source_are_violations() {
        assert!(messages(&[(RATCHET, "[surprise]")])[0].contains("cannot be read"));
        assert!(messages(&[("a.rs", "\nfn (")])[0].starts_with("a.rs:2: cannot be parsed"));
    }
}
