//! How hard a write is compressed: its volume's class, its command's hint, and the engine's load each move it.

use ob_format::volume::metadata::Class;
use ob_wire_nvme::SubmissionEntry;

use crate::plans::EFFORT_MAX;

/// How long whoever writes would wait (access latency of the dataset management field: CDW13 bits 5:4, NVM §3.2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Latency {
    /// Nothing is said.
    #[default]
    None,
    /// Longer is good enough.
    Idle,
    /// As long as is usual.
    Normal,
    /// As short as may be.
    Low,
}

impl Latency {
    /// What a command says.
    #[must_use]
    pub const fn of(entry: &SubmissionEntry) -> Self {
        match entry.dword13.get() >> 4 & 3 {
            1 => Self::Idle,
            2 => Self::Normal,
            3 => Self::Low,
            _ => Self::None,
        }
    }
}

/// The effort of a write's plan: 0, as it is, to [`EFFORT_MAX`]. The load is the busiest engine's, of 255.
#[must_use]
pub fn effort(class: Class, latency: Latency, load: u8) -> u8 {
    let base: u8 = match class {
        Class::Plain => return 0,
        Class::Fast => 1,
        Class::Standard => 2,
        Class::Dense => 3,
    };
    if latency == Latency::Low {
        return 0;
    }
    let is_busy = load > 191;
    let more = u8::from(latency == Latency::Idle) + u8::from(class == Class::Dense && load < 64);
    (base + more - u8::from(is_busy)).min(EFFORT_MAX)
}

#[cfg(test)]
mod tests {
    use ob_wire_nvme::command::{DataPointer, IoOpcode};
    use ob_wire_nvme::io::BlockCommand;
    use ob_wire_nvme::{CommandId, NamespaceId};

    use super::*;

    #[test]
    fn class_hint_and_load_move_it() {
        let of = |class, latency, load| effort(class, latency, load);
        for load in [0, 100, 255] {
            assert_eq!(of(Class::Plain, Latency::Idle, load), 0, "a plain volume is stored as it is");
            assert_eq!(of(Class::Dense, Latency::Low, load), 0, "somebody waits");
        }
        let classes = [Class::Fast, Class::Standard, Class::Dense];
        assert_eq!(classes.map(|class| of(class, Latency::None, 100)), [1, 2, 3]);
        assert_eq!(classes.map(|class| of(class, Latency::Normal, 0)), [1, 2, 4]);
        assert_eq!(classes.map(|class| of(class, Latency::Normal, 255)), [0, 1, 2]);
        assert_eq!(classes.map(|class| of(class, Latency::Idle, 0)), [2, 3, 4]);
        assert_eq!(classes.map(|class| of(class, Latency::Idle, 255)), [1, 2, 3]);
    }

    #[test]
    fn the_hint_is_in_two_bits() {
        let of = |dword13: u32| {
            let write = BlockCommand::new(NamespaceId(1), 0, 1);
            let mut entry = write.encode(IoOpcode::Write, CommandId(1), DataPointer::None);
            entry.dword13 = dword13.into();
            Latency::of(&entry)
        };
        assert_eq!(
            [0xCF, 0x10, 0x20, 0x3F].map(of),
            [Latency::None, Latency::Idle, Latency::Normal, Latency::Low]
        );
    }
}
