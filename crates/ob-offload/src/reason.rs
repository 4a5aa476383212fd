//! Why a request went to the host.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $text:literal;)*) => {
        /// Why a request went to the host.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// What it is called in the status.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// It changes something.
    Write, "write";
    /// It is of a kind that only the host answers.
    Command, "command";
    /// The host has not admitted the connection.
    NotAdmitted, "not-admitted";
    /// The signature says that the card is not to look at its connection.
    NotMatched, "not-matched";
    /// It, or one of its keys, is longer than the card takes.
    TooLong, "too-long";
    /// It has more keys than are looked up at once.
    TooManyKeys, "too-many-keys";
    /// The table does not have all of its keys.
    Absent, "absent";
    /// One of its keys expires soon.
    NearExpiry, "near-expiry";
    /// What it reads is longer than the card's buffers.
    TooLarge, "too-large";
    /// The card has as many reads under way as it can.
    Busy, "busy";
    /// No buffer was free.
    NoBuffer, "no-buffer";
    /// The file is not known, any more or yet.
    NoFile, "no-file";
    /// The device did not read it.
    ReadFailed, "read-failed";
    /// What was read is not what the table meant.
    Mismatch, "mismatch";
    /// A program of the service said so.
    Program, "program";
    /// A request before it on the same connection went to the host after all.
    Behind, "behind";
}

/// How often, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReasonCounts([u64; Reason::ALL.len()]);

impl ReasonCounts {
    /// One more.
    pub fn add(&mut self, reason: Reason) {
        if let Some(count) = self.0.get_mut(reason as usize) {
            *count += 1;
        }
    }

    /// How often for this one.
    pub fn of(&self, reason: Reason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// How often in all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../../docs/director.md");

    #[test]
    fn the_document_explains_every_reason_and_no_other() {
        let table = DOCUMENT.split("| reason | means |").nth(1).unwrap().split("\n\n").next().unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let names: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(rows.collect::<Vec<_>>(), names);
    }

    #[test]
    fn each_reason_has_a_count_of_its_own() {
        let mut counts = ReasonCounts::default();
        for (times, reason) in Reason::ALL.iter().enumerate() {
            (0..times).for_each(|_| counts.add(*reason));
        }
        for (times, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(counts.of(*reason), times as u64);
        }
        assert_eq!(counts.total(), (0..Reason::ALL.len() as u64).sum());
    }
}
