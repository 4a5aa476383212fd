//! Bugs that a crate can break itself with on purpose, so that it is seen that its tests find them
//! (`cargo xtask planted`); and what a test says that passes and has tested nothing ([`not_tested`]).
//!
//! ```text
//!   OB_PLANT=NAME ─▶ plants! { NAME … } ─▶ is_planted(Bug::…) ─┬─ true: the code breaks ─▶ a test must fail
//!                                                              └─ false, and always so outside of tests
//! ```
//!
//! A crate lists its bugs with [`plants!`] and asks `is_planted(Bug::…)` where each of them breaks something. With the
//! feature `planted-bugs`, the environment variable `OB_PLANT` names the one that is on. Only tests depend on this crate
//! with that feature: they and the bugs are then built once, whether a bug is on or not. In what people build and run the
//! answer is `false` when it is compiled.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::Write;
#[cfg(feature = "planted-bugs")]
use std::sync::OnceLock;

/// Tells whoever runs the tests what this one, or a part of it, does not test here, and why. To the process' own standard error: what
/// a test prints that passes, the test harness keeps to itself. `cargo xtask tidy` finds those who print it.
pub fn not_tested(reason: impl Display) {
    let thread = std::thread::current();
    let line = format!("NOT TESTED: {}: {reason}\n", thread.name().unwrap_or("a test"));
    // In one piece, for tests run beside each other.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Whether any bug is chosen, of whichever crate: then it is worth looking for it longer.
#[must_use]
pub fn is_any_chosen() -> bool {
    chosen().is_some()
}

/// The name of the bug that is chosen.
#[cfg(feature = "planted-bugs")]
fn chosen() -> Option<&'static str> {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("OB_PLANT").ok()).as_deref()
}

/// The name of the bug that is chosen: none can be.
#[cfg(not(feature = "planted-bugs"))]
const fn chosen() -> Option<&'static str> {
    None
}

/// Which bug of one crate is on; what [`plants!`] keeps.
#[cfg(feature = "planted-bugs")]
pub struct Planted<B>(OnceLock<Option<B>>);

/// Which bug of one crate is on: none; what [`plants!`] keeps.
#[cfg(not(feature = "planted-bugs"))]
pub struct Planted<B>(std::marker::PhantomData<B>);

#[cfg(feature = "planted-bugs")]
impl<B: PartialEq> Planted<B> {
    /// Nobody has asked yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Whether this bug is on. A name that the crate does not know changes nothing.
    pub fn is(&self, bug: &B, named: fn(&str) -> Option<B>) -> bool {
        self.0.get_or_init(|| chosen().and_then(named)).as_ref() == Some(bug)
    }
}

#[cfg(not(feature = "planted-bugs"))]
impl<B: PartialEq> Planted<B> {
    /// Nobody needs to ask.
    #[must_use]
    pub const fn new() -> Self {
        Self(std::marker::PhantomData)
    }

    /// Whether this bug is on: it cannot be.
    #[inline]
    pub const fn is(&self, _bug: &B, _named: fn(&str) -> Option<B>) -> bool {
        false
    }
}

impl<B: PartialEq> Default for Planted<B> {
    fn default() -> Self {
        Self::new()
    }
}

/// The bugs of a crate, each with the name that `OB_PLANT` has for it: makes the enumeration, and `is_planted` beside it.
///
/// ```
/// ob_plant::plants! {
///     /// What can be wrong with sums.
///     enum Bug {
///         /// The carry is left out.
///         CarryForgotten = "carry-forgotten",
///     }
/// }
/// assert!(!is_planted(Bug::CarryForgotten));
/// ```
#[macro_export]
macro_rules! plants {
    (
        $(#[$attribute:meta])*
        $visible:vis enum $bugs:ident {
            $($(#[$about:meta])* $bug:ident = $name:literal,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $bugs {
            $($(#[$about])* $bug,)*
        }

        /// Whether this bug is on.
        #[inline]
        #[must_use]
        $visible fn is_planted(bug: $bugs) -> bool {
            static PLANTED: $crate::Planted<$bugs> = $crate::Planted::new();
            let named = |name: &str| match name {
                $($name => Some($bugs::$bug),)*
                _ => None,
            };
            PLANTED.is(&bug, named)
        }
    };
}
