//! How a network behaves, and what it did.

use std::ops::Range;
use std::time::Duration;

use crate::{PerMillion, Rng};

/// How the connections of a network behave.
#[derive(Clone, Debug)]
pub struct NetPlan {
    /// How long bytes travel; loss and reordering of packets show as the long end of it.
    pub latency: Range<Duration>,
    /// Bytes a second in each direction of a connection.
    pub bandwidth: u64,
    /// Bytes that may be sent and not yet received by the peer's program.
    pub window: usize,
    /// How often a send or a receive moves fewer bytes than it could.
    pub short: PerMillion,
    /// How often an event says that there may be something when there is nothing.
    pub spurious: PerMillion,
    /// How often something on the way resets the connection, for each segment.
    pub reset: PerMillion,
    /// How often a connection is refused though somebody listens.
    pub refuse: PerMillion,
    /// How often `connect` finds no descriptor or memory left.
    pub exhausted: PerMillion,
    /// How long until bytes that did not get through are sent again.
    pub retry: Duration,
    /// How long until a sender whose bytes do not get through gives up.
    pub timeout: Duration,
}

impl Default for NetPlan {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(20)..Duration::from_millis(2),
            bandwidth: 1 << 30,
            window: 64 << 10,
            short: PerMillion::percent(30),
            spurious: PerMillion::percent(2),
            reset: PerMillion::NEVER,
            refuse: PerMillion::NEVER,
            exhausted: PerMillion::NEVER,
            retry: Duration::from_millis(200),
            timeout: Duration::from_secs(10),
        }
    }
}

impl NetPlan {
    /// One of the networks that services have to live with: near or far, and some faults of their own, each in some seeds only.
    pub fn draw(rng: &mut Rng) -> Self {
        const NEAR: [u64; 2] = [20, 2_000];
        fn pick<T: Copy + Default>(rng: &mut Rng, items: &[T]) -> T {
            items.get(rng.index(items.len())).copied().unwrap_or_default()
        }
        let [least_us, most_us] = pick(rng, &[NEAR, NEAR, [5, 100], [120_000, 200_000]]);
        Self {
            latency: Duration::from_micros(least_us)..Duration::from_micros(most_us),
            bandwidth: pick(rng, &[1 << 30, 1 << 30, 8 << 20]),
            window: pick(rng, &[64 << 10, 64 << 10, 4 << 10]),
            short: PerMillion::percent(pick(rng, &[30, 0, 90])),
            spurious: PerMillion::percent(pick(rng, &[2, 0, 20])),
            reset: PerMillion(pick(rng, &[0, 0, 0, 100, 1_000])),
            refuse: PerMillion(pick(rng, &[0, 0, 100_000])),
            exhausted: PerMillion(pick(rng, &[0, 0, 100_000])),
            retry: Duration::from_millis(pick(rng, &[200, 20])),
            timeout: Duration::from_secs(pick(rng, &[10, 3])),
        }
    }
}

/// What a network did, so that a test can see that a fault was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    /// Connections established.
    pub connected: u64,
    /// Connections refused.
    pub refused: u64,
    /// Connections for which there was no descriptor or memory.
    pub exhausted: u64,
    /// Connections reset.
    pub resets: u64,
    /// Connections given up because nothing got through.
    pub timeouts: u64,
    /// Sends that took fewer bytes than offered.
    pub short_sends: u64,
    /// Receives that gave fewer bytes than there were and fitted.
    pub short_receives: u64,
    /// Segments held up by a cut or a dead machine.
    pub held_up: u64,
    /// Bytes that arrived.
    pub bytes: u64,
}
