//! What functions have done.

/// Numbers for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionCounts {
    /// Requests that were begun.
    pub requests: u64,
    /// Those that were answered.
    pub answered: u64,
    /// Commands that failed, of all kinds.
    pub failed: u64,
    /// Requests that their program gave up, or that it was stopped in.
    pub given_up: u64,
    /// Requests that ended because a file had changed, or that were refused because they named another version of a map.
    pub changed: u64,
    /// Requests whose client went away.
    pub gone: u64,
    /// Reads for programs.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// How often a tenant had to wait because it had used its share of a core.
    pub over_share: u64,
    /// Files and plans that were closed to make room, because nobody had made use of them for a while.
    pub displaced: u64,
    /// Requests under way.
    pub running: u64,
    /// Files that clients have open.
    pub files: u64,
    /// Extents that are kept for them.
    pub extents: u64,
    /// Plans that they have prepared.
    pub plans: u64,
    /// Programs that are loaded, of all tenants and threads.
    pub programs: u64,
}

impl std::ops::AddAssign for FunctionCounts {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.answered += other.answered;
        self.failed += other.failed;
        self.given_up += other.given_up;
        self.changed += other.changed;
        self.gone += other.gone;
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.over_share += other.over_share;
        self.displaced += other.displaced;
        self.running += other.running;
        self.files += other.files;
        self.extents += other.extents;
        self.plans += other.plans;
        // Threads share them.
        self.programs = self.programs.max(other.programs);
    }
}
