//! Requests that cannot be: each must be refused with a typed error, and change nothing.

use ob_core::{NodeId, NodeKind};
use ob_wire_link::files::{FileError, Operation, PATH_LEN_MAX, RequestHeader, flag};

use super::generate::{Draft, Generator, Intent};
use super::host::{Wire, header};
use super::model::{ROOT_KEY, What};

use FileError::{BadName, Invalid, IsADirectory, NotADirectory, NotFound, TooLarge, Unsupported};

fn draft(wire: Wire, refusals: &'static [FileError]) -> Draft {
    Draft { wire, intent: Intent::Other(What::Hostile { refusals }) }
}

fn of(header: &RequestHeader, refusals: &'static [FileError]) -> Draft {
    draft(Wire::of(header, &[]), refusals)
}

/// Any of them.
pub(super) fn draw(generator: &mut Generator<'_>) -> Option<Draft> {
    match generator.rng.below(5) {
        0 => shapes(generator),
        1 => names(generator),
        2 => nodes(generator),
        3 => numbers(generator),
        _ => writes(generator),
    }
}

/// Messages that are no requests.
fn shapes(generator: &mut Generator<'_>) -> Option<Draft> {
    let root = generator.model.id(ROOT_KEY)?;
    let both = flag::ONLY_FILE | flag::ONLY_DIRECTORY;
    Some(match generator.rng.below(5) {
        0 => {
            let mut inline = vec![0; generator.rng.index(40)];
            generator.rng.fill(&mut inline);
            draft(Wire { inline, payload: None }, &[Invalid])
        }
        1 => {
            let operation = *generator.rng.choose(&[0, 14, 255, u16::MAX])?;
            of(&RequestHeader { operation, ..RequestHeader::default() }, &[Unsupported])
        }
        2 => {
            let offset = *generator.rng.choose(&[0, 2, u64::MAX])?;
            of(&RequestHeader { offset, ..header(Operation::Hello, NodeId(0)) }, &[Unsupported])
        }
        3 => of(&RequestHeader { flags: both, ..header(Operation::Remove, root) }, &[Invalid]),
        _ => {
            let length = *generator.rng.choose(&[5, 1 << 20, u32::MAX])?;
            let header = RequestHeader { length, node_more: root, ..header(Operation::Rename, root) };
            draft(Wire::of(&header, b"abc"), &[Invalid])
        }
    })
}

/// Names that cannot be.
fn names(generator: &mut Generator<'_>) -> Option<Draft> {
    let root = generator.model.id(ROOT_KEY)?;
    let long_name = vec![b'x'; 256];
    let long_path = vec![b'x'; PATH_LEN_MAX + 1];
    let fits = generator.limits.inline_max > PATH_LEN_MAX + 100;
    let bad: [&[u8]; 9] =
        [b"/", b"/a", b"a/", b"a//b", b".", b"..", b"a/../b", b"a\0b", if fits { &long_path } else { b"\0" }];
    let path = if generator.rng.one_in(5) { &long_name[..] } else { *generator.rng.choose(&bad)? };
    let operations = [Operation::Open, Operation::MakeDirectory, Operation::Remove, Operation::Stat];
    if generator.rng.one_in(5) {
        // The old name can be, the new one cannot; whether there is an old one is looked at first.
        let (_, node, from) = generator.place()?;
        let length = from.len() as u32;
        let header = RequestHeader { length, node_more: root, ..header(Operation::Rename, node) };
        let both = [&from[..], path].concat();
        let refusals = &[BadName, NotFound, NotADirectory];
        return (both.len() < generator.limits.inline_max).then(|| draft(Wire::of(&header, &both), refusals));
    }
    let operation = *generator.rng.choose(&operations)?;
    let create = operation == Operation::Open && generator.rng.one_in(2);
    let header = RequestHeader { flags: u16::from(create), ..header(operation, root) };
    Some(draft(Wire::of(&header, path), &[BadName]))
}

/// Nodes that are not there, or not what they should be.
fn nodes(generator: &mut Generator<'_>) -> Option<Draft> {
    let unknown = match generator.rng.below(3) {
        0 => NodeId(0),
        1 => NodeId(u64::MAX),
        _ => generator.model.unknown_id(),
    };
    let operations = [
        Operation::Read,
        Operation::Resize,
        Operation::Zero,
        Operation::Stat,
        Operation::List,
        Operation::Remove,
    ];
    let operation = *generator.rng.choose(&operations)?;
    if generator.rng.one_in(2) {
        return Some(of(&RequestHeader { length: 1, ..header(operation, unknown) }, &[NotFound]));
    }
    let known: Vec<_> = generator.model.known().collect();
    let (key, node) = *generator.rng.choose(&known)?;
    let operation = if generator.rng.one_in(2) { Operation::Read } else { Operation::Resize };
    let is_directory = generator.model.tree().kind(key) == Some(NodeKind::Directory);
    is_directory
        .then(|| of(&RequestHeader { length: 1, ..header(operation, node) }, &[IsADirectory, NotFound]))
}

/// Lengths and sizes that cannot be.
fn numbers(generator: &mut Generator<'_>) -> Option<Draft> {
    let (_, node) = generator.file()?;
    let transfer_max = generator.limits.transfer_max;
    let length = *generator.rng.choose(&[transfer_max + 1, 1 << 30, u32::MAX])?;
    let size = *generator.rng.choose(&[u64::MAX, 1 << 63, u64::MAX - 4095])?;
    Some(match generator.rng.below(2) {
        0 => of(&RequestHeader { length, ..header(Operation::Read, node) }, &[TooLarge]),
        _ => of(&RequestHeader { offset: size, ..header(Operation::Resize, node) }, &[TooLarge]),
    })
}

/// Writes whose numbers do not fit.
fn writes(generator: &mut Generator<'_>) -> Option<Draft> {
    let (_, node) = generator.file()?;
    let transfer_max = generator.limits.transfer_max;
    let write = header(Operation::Write, node);
    let with = |header: &RequestHeader, len: usize, refusals| {
        let mut wire = Wire::of(header, &[]);
        wire.payload = Some((vec![0xee; len], 8));
        draft(wire, refusals)
    };
    Some(match generator.rng.below(4) {
        0 => of(&RequestHeader { length: 4, ..write }, &[Invalid]),
        1 => with(&RequestHeader { length: 9, ..write }, 8, &[Invalid]),
        2 => with(&RequestHeader { length: transfer_max + 1, ..write }, 8, &[TooLarge]),
        _ => {
            let offset = *generator.rng.choose(&[u64::MAX, u64::MAX - 3, u64::MAX - 7, 1 << 63])?;
            with(&RequestHeader { length: 8, offset, ..write }, 8, &[TooLarge, NotFound])
        }
    })
}
