//! What a verb came to, when it did not fail.

/// How a verb ended. Failure is the error side of the verb's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The work was done, and what it checks holds.
    Done,
    /// The machine cannot do this work; nothing is known. The text says what is missing.
    Skipped(String),
    /// It was left out, because nothing that it checks has changed. The text says since when.
    Unchanged(String),
}

impl Outcome {
    /// A skip that cannot be overlooked in a long log, so that nobody takes it for a pass.
    #[must_use]
    pub fn skipped(verb: &str, reason: &str) -> Self {
        println!("\n!!!!!!!! SKIPPED {verb}: {reason} !!!!!!!!\n");
        Self::Skipped(reason.to_owned())
    }
}
