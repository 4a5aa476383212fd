//! What a program is made for, and how it is verified: by its seed.

use crate::campaign::random::Random;
use crate::hooks;
use crate::verifier::Options;
use crate::world::{Entry, Field, FieldKind, World};

/// Instructions that the verifier interprets before a program of a campaign is too complex: they are short.
const STEPS_MAX: u64 = 20_000;
/// The same for a few, so that this comes to pass.
const STEPS_MAX_LOW: u64 = 60;

const fn field(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind, purpose: "" }
}

/// A hook that has everything. Its lengths are small, so that programs are often at their ends.
const WORLD: World = World {
    name: "campaign",
    entry: Entry::Context,
    fields: &[
        field("data", FieldKind::Data),
        field("data_len", FieldKind::DataLen),
        field("scratch", FieldKind::Scratch),
        field("scratch_len", FieldKind::ScratchLen),
        field("first", FieldKind::Number),
        field("second", FieldKind::Number),
        field("result", FieldKind::Result),
    ],
    scratch_len: 64,
    data_len_max: 4096,
    table_value_len: 24,
    is_called_by_name: false,
};

/// Memory and nothing else.
const RAW: World = World::raw(WORLD.scratch_len);

/// Where and how the program of a seed is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) world: &'static World,
    pub(super) options: Options,
}

impl Setting {
    /// Every hook, strictly and not.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let worlds = [&WORLD, &RAW].into_iter().chain(hooks::ALL.iter().copied());
        worlds.flat_map(|world| {
            [false, true].map(|is_strict| Self {
                world,
                options: Options { is_strict, steps_max: STEPS_MAX, ..Options::default() },
            })
        })
    }

    pub(super) fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x0b0a_d5e7);
        let hook = hooks::ALL.get(random.below(hooks::ALL.len())).copied();
        let world = match random.below(8) {
            0..=4 => &WORLD,
            5 => &RAW,
            _ => hook.unwrap_or(&WORLD),
        };
        let steps_max = if random.once_in(64) { STEPS_MAX_LOW } else { STEPS_MAX };
        Self { world, options: Options { is_strict: random.once_in(8), steps_max, ..Options::default() } }
    }
}

/// Bytes of the longest scratch that there is.
pub(super) const SCRATCH_LEN_MAX: usize = {
    let (mut longest, mut at) = (WORLD.scratch_len, 0);
    while at < hooks::ALL.len() {
        if hooks::ALL[at].scratch_len > longest {
            longest = hooks::ALL[at].scratch_len;
        }
        at += 1;
    }
    longest as usize
};
