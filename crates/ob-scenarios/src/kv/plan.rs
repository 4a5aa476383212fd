//! What a seed chooses: how the network behaves, what clients ask, and what happens how often.

use ob_sim::{NetPlan, Rng};

/// Ways to draw a command, by [`super::client::Client::draw`].
pub(super) const ARMS: u64 = 32;

/// Those that let keys expire.
const EXPIRING: [u64; 2] = [21, 31];

/// What holds for a whole run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) net: NetPlan,
    /// Which of the ways to draw a command there are.
    pub(super) arms: Vec<u64>,
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
        let mut arms: Vec<u64> = (0..ARMS).filter(|arm| *arm == 0 || rng.below(100) >= left_out).collect();
        // What goes wrong around an expiry does so within milliseconds: some seeds have many. Time makes it harder to find an order, so
        // they have less under way.
        let expires_much = rng.one_in(4);
        if expires_much {
            arms.extend(EXPIRING.repeat(6));
        }
        Self {
            net: NetPlan::draw(rng),
            arms,
            pipeline: if expires_much { 1 } else { pick(rng, &[4, 4, 2, 6]) as usize },
            clock_steps_one_in: if expires_much { 30 } else { 300 },
            stretch: if expires_much { 25 } else { pick(rng, &[40, 40, 25, 80]) },
            fault_one_in: pick(rng, &[1200, 1200, 400, 5000]),
            faults: FAULTS.map(|(_, weight, loses)| {
                let weight = weight * pick(rng, &[1, 1, 3, 0]);
                if loses && !may_lose { 0 } else { weight }
            }),
        }
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
