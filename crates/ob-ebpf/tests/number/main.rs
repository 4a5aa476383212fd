//! Numbers as the verifier knows them, against what words do: on narrow words with all values that there are, on wide ones with
//! many.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod chains;
mod family;
mod laws;
mod narrow_words;
mod sharp;
mod wide_words;
