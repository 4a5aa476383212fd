//! As many descriptors as connections and files need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a half asks for: more than all hosts, connections and parts of a log that it may have at once.
const DESCRIPTORS: u64 = 32 << 10;

/// A shell lets a program have fewer descriptors than there may be connections, and lets it ask for more. Without them
/// connections that say nothing would keep others out, before anybody could decide which of them to close.
pub(crate) fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DESCRIPTORS, |maximum| maximum.min(DESCRIPTORS));
    if limit.current.is_some_and(|current| current < wanted)
        && let Err(error) =
            setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })
    {
        tracing::warn!("no more than {:?} descriptors can be had: {error}", limit.current);
    }
}
