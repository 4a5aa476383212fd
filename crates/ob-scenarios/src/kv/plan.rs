//! What a seed chooses: how the network behaves, what clients ask, and what happens how often.

use std::time::Duration;

use ob_sim::{NetPlan, Rng};

use super::client::KEYS;

/// Ways to draw a command, by [`super::client::Client::draw`].
pub(super) const ARMS: u64 = 32;

/// Where keys expire all the time: GET, MGET, SET and EXPIRE for a while, so that what is told about an expiry stands beside others that
/// tell of the same.
const EXPIRING: [u64; 8] = [0, 0, 0, 10, 10, 21, 21, 31];
/// Their keys: two that the card answers for, and one that takes an MGET to the host.
const EXPIRING_KEYS: [&str; 3] = [KEYS[0], KEYS[1], KEYS[4]];

/// What holds for a whole run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) net: NetPlan,
    /// Which of the ways to draw a command there are, and for which keys.
    pub(super) arms: Vec<u64>,
    pub(super) keys: &'static [&'static str],
    /// How far the host's clock jumps now and then.
    pub(super) clock_step_ms: u64,
    /// One turn in so many moves the host's clock.
    pub(super) clock_steps_one_in: u64,
    /// Requests of one client on their way at once.
    pub(super) pipeline: usize,
    /// Requests from one time that everybody is quiet to the next.
    pub(super) stretch: u64,
    /// One turn in so many has a fault.
    pub(super) fault_one_in: u64,
    faults: [u64; FAULTS.len()],
}

/// What happens to those who take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Reset,
    CutClient,
    CardDies,
    LinkCut,
    HostDies,
    CardPowerFails,
    PowerFails,
    /// A client does nothing for a while; so do the halves.
    ClientPaused,
    CardPaused,
    HostPaused,
}

/// All faults, how often they are drawn unless the seed prefers some, and whether they lose what is not durable.
const FAULTS: [(Fault, u64, bool); 10] = [
    (Fault::Reset, 1, false),
    (Fault::CutClient, 1, false),
    (Fault::CardDies, 2, false),
    (Fault::LinkCut, 2, false),
    (Fault::HostDies, 2, true),
    (Fault::CardPowerFails, 1, true),
    (Fault::PowerFails, 4, true),
    (Fault::ClientPaused, 1, false),
    (Fault::CardPaused, 1, false),
    (Fault::HostPaused, 1, false),
];

impl Plan {
    /// `may_lose`: whether what is not durable may be lost.
    pub(super) fn draw(rng: &mut Rng, may_lose: bool) -> Self {
        let left_out = pick(rng, &[0, 0, 25, 60]);
        let arms: Vec<u64> = (0..ARMS).filter(|arm| *arm == 0 || rng.below(100) >= left_out).collect();
        let common = Self {
            net: NetPlan::draw(rng),
            arms,
            keys: &KEYS,
            pipeline: pick(rng, &[4, 4, 2, 6]) as usize,
            clock_step_ms: 4,
            clock_steps_one_in: 300,
            stretch: pick(rng, &[40, 40, 25, 80]),
            fault_one_in: pick(rng, &[1200, 1200, 400, 5000]),
            faults: FAULTS.map(|(_, weight, loses)| {
                let weight = weight * pick(rng, &[1, 1, 3, 0]);
                if loses && !may_lose { 0 } else { weight }
            }),
        };
        if rng.one_in(4) { common.with_many_expiries() } else { common }
    }

    /// What goes wrong around an expiry does so within milliseconds: clients are near, ask for little else, and clocks jump far. Time makes
    /// it harder to find an order, so less is under way.
    fn with_many_expiries(mut self) -> Self {
        self.net.latency = Duration::from_micros(5)..Duration::from_millis(1);
        Self {
            arms: EXPIRING.to_vec(),
            keys: &EXPIRING_KEYS,
            pipeline: 1,
            clock_step_ms: 20,
            clock_steps_one_in: 100,
            stretch: 25,
            ..self
        }
    }

    /// How long before its expiry the card does not answer for a key any more: longer than the host's clock jumps.
    pub(super) fn card_margin_ms(&self) -> u64 {
        self.clock_step_ms + 1
    }

    /// How far the expiry of a key may be from what its client expects: the store counts whole milliseconds.
    pub(super) fn expiry_margin(&self) -> Duration {
        Duration::from_millis(self.clock_step_ms + 2)
    }

    /// What goes wrong now, if anything.
    pub(super) fn fault(&self, rng: &mut Rng) -> Option<Fault> {
        let mut drawn = rng.below(self.faults.iter().sum());
        FAULTS.iter().zip(self.faults).find_map(|((fault, ..), weight)| {
            let is_it = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            is_it.then_some(*fault)
        })
    }
}

pub(super) fn pick(rng: &mut Rng, items: &[u64]) -> u64 {
    items.get(rng.index(items.len())).copied().unwrap_or_default()
}
