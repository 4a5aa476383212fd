//! Programs as compilers hand them over: relocatable ELF objects of `clang -target bpf -O2 -g`.
//!
//! ```text
//!   bytes ─▶ Object::parse ─▶ sections, functions, relocations ─▶ program(entry) ─▶ link: what the entry reaches, laid out anew
//!            (the container)                                                        btf:  source lines    ─▶ Program
//! ```
//!
//! A function is an entry if it is global and its section is not `.text` or `.text.*`; the section's name up to the first `/` says for which
//! hook. Its variables and constants come from `.data*`, `.bss*` and `.rodata*`, as far as they are used; how many bytes of data it asks
//! for is the one `u32` of the section `outboard.data_min`.

mod btf;
mod link;
mod parse;

use thiserror::Error;

use crate::isa::Undecodable;
use crate::program::ProgramError;

pub use parse::{Entry, Object};

/// Bytes of the largest object.
pub const OBJECT_LEN_MAX: usize = 4 << 20;

/// Why an object is no program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// It is too large to be looked at.
    #[error("the object has {len} bytes; {OBJECT_LEN_MAX} is the most")]
    TooLarge {
        /// How many bytes.
        len: usize,
    },
    /// It is no object, or a broken one.
    #[error(
        "this is not an ELF object, or a broken one: {what}, read at byte {offset}\nhint: clang -target bpfel -c makes one of a program"
    )]
    Container {
        /// Where what is broken begins: a header, a table, a section.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// It is an object of another kind.
    #[error("the object is {found}, not {wanted}\nhint: compile it with clang -target bpfel -c")]
    Kind {
        /// What it should be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// A section that cannot be used as it is.
    #[error("section {name}, at byte {offset} of the object: {what}")]
    Section {
        /// Which.
        name: String,
        /// Where it lies in the object.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A function's symbol that cannot be right.
    #[error("function {name}, at byte {begin} of section {section}: {what}")]
    Function {
        /// Which.
        name: String,
        /// In which section.
        section: String,
        /// Where in the section.
        begin: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// There is nothing to begin with.
    #[error(
        "no function is an entry: put one that is not static into a section of its hook, such as SEC(\"storage\")"
    )]
    NoEntry,
    /// There is no such entry.
    #[error("there is no entry {name}; there are {known}")]
    EntryMissing {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// There are several, and none was asked for.
    #[error("there are several entries, {known}: say which")]
    EntryAmbiguous {
        /// What there is.
        known: String,
    },
    /// An instruction that cannot be taken.
    #[error("function {function}, byte {offset} of the object: {what}")]
    Instruction {
        /// In which function.
        function: String,
        /// Where it lies in the object.
        offset: u64,
        /// What is wrong with it.
        what: Unlinkable,
    },
    /// All of it together is no program.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// What is wrong with an instruction.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unlinkable {
    /// It is none.
    #[error(transparent)]
    Undecodable(#[from] Undecodable),
    /// A relocation of another kind.
    #[error("relocation type {0} is not known for instructions")]
    Relocation(u32),
    /// A relocation that does not fit to what it is of.
    #[error("the relocation is not of {0}")]
    Misplaced(&'static str),
    /// A symbol that does not exist.
    #[error("the relocation is by symbol {0}, which there is not")]
    Symbol(u32),
    /// Something of the kernel, or of another object.
    #[error(
        "{0} is extern, and nothing here has this name: there is no kernel to take it from (ksyms, kconfig), and objects are not \
         linked with each other; helpers are called by their numbers or names, constants belong into the object"
    )]
    Extern(String),
    /// A map.
    #[error(
        "{0} is a map, and there are none: what stays between calls belongs into the scratch, variables of one call into globals, \
         and the card's table is reached by ob_table_lookup"
    )]
    Map(String),
    /// The address of a function.
    #[error("the address of {0} is taken; functions can be called by their names only")]
    FunctionAddress(String),
    /// An address in a section that is not the program's.
    #[error("it takes an address in section {0}, which is neither of .rodata, .data nor .bss")]
    Section(String),
    /// Data that holds addresses.
    #[error(
        "it takes an address in section {0}, which holds addresses itself: tables of pointers are not supported, \
         use indices or a switch (in a program in Rust, it is what a panic would say: nothing there may panic)"
    )]
    PointersInData(String),
    /// An address outside of what it is relative to.
    #[error("it takes the address of byte {offset} of section {section}, which has {len}")]
    Address {
        /// Of which section.
        section: String,
        /// Of which byte.
        offset: i64,
        /// How many it has.
        len: u64,
    },
    /// A call to where no function begins.
    #[error("it calls byte {offset} of section {section}, where no function begins")]
    Callee {
        /// Of which section.
        section: String,
        /// Which byte.
        offset: i64,
    },
    /// An offset that depends on the kernel.
    #[error(
        "it is to be relocated by the kernel's types (CO-RE), which there are not: leave preserve_access_index away, \
         and declare the context as the hook's header does"
    )]
    CoRe,
}
