//! What is tried, one script of the guest a scenario.

/// A scenario.
#[derive(Debug)]
pub struct Scenario {
    /// Its name on the command line, and its script's.
    pub name: &'static str,
    /// What it shows.
    pub purpose: &'static str,
    /// After this many seconds it hangs, as far as we can tell. Generous: the machine is emulated.
    pub seconds_max: u64,
    pub(super) script: &'static str,
}

macro_rules! scenario {
    ($name:literal, $seconds_max:literal, $purpose:literal) => {
        Scenario {
            name: $name,
            purpose: $purpose,
            seconds_max: $seconds_max,
            script: include_str!(concat!("guest/scenarios/", $name, ".sh")),
        }
    };
}

/// All of them, quick ones first.
pub const SCENARIOS: &[Scenario] = &[
    scenario!("discover", 90, "the discovery log, plain, with digests and over a lasting connection"),
    scenario!(
        "connect",
        180,
        "connect and verified I/O: plain, header digest, data digest, both, a small queue"
    ),
    scenario!("queues", 120, "four I/O queues, and one"),
    scenario!("identify", 120, "what nvme-cli shows: identify, logs, features; what must be refused"),
    scenario!(
        "commands",
        120,
        "compare, write zeroes, deallocate, verify, flush, and what they do to the data"
    ),
    scenario!("reservations", 120, "register, acquire, report, release"),
    scenario!("authentication", 180, "DH-HMAC-CHAP, the host alone and both sides, and wrong secrets"),
    scenario!("ext4", 300, "mkfs, mount, fio with verify, fstrim, unmount, fsck"),
    scenario!("xfs", 300, "the same with xfs"),
    scenario!(
        "volumes",
        900,
        "a volume on three chunk servers, of which each is killed, as are card and host"
    ),
    scenario!("full", 600, "a volume whose chunk servers have no room any more, and have some again"),
    scenario!("pushdown", 1500, "storage functions over mounted files that are written meanwhile"),
    scenario!("disconnect", 180, "disconnect under I/O, reconnect, reset"),
    scenario!("resize", 300, "a namespace grows and shrinks while it is connected"),
    scenario!("remove", 180, "a namespace is removed under I/O"),
    scenario!("restart", 300, "the target is killed and started again under I/O"),
    scenario!("golden", 240, "one small PDU of each kind, for the record"),
];

/// The scenario that only makes sense where traffic is recorded.
pub const RECORDING: &str = "golden";
