//! Programs on the card: eBPF that others hand over, proven harmless and compiled.
//!
//! ```text
//!   bytes ─▶ isa::decode ─▶ Program (its shape is right) ─▶ verifier ─▶ Verified ─┬─▶ compiler ─▶ native code
//!                                                     world: regions, contexts,   └─▶ interpreter, the reference
//!                                                     helpers
//! ```
//!
//! What programs may do and how they are held to it is in `docs/programs.md`.

pub mod call;
#[cfg(feature = "campaign")]
pub mod campaign;
#[cfg(feature = "compiler")]
pub mod compiler;
pub mod elf;
pub mod helpers;
pub mod hooks;
pub mod interpreter;
pub mod isa;
pub mod number;
pub mod plant;
pub mod program;
pub mod sampled;
pub mod text;
pub mod verdict;
pub mod verifier;
pub mod world;
