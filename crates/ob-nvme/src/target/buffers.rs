//! The memory that payload lies in: pools of a few sizes, made once, and shared by [`super::shares`].
//!
//! Data of capsules has a pool of its own. A connection that finds it empty stops reading, and what holds its buffers
//! waits for devices alone; solicited writes, which wait for bytes that may lie behind such a stop, never take from it, and the half
//! of a pair that waits for such a one is copied out of it.

use std::fmt;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ob_memory::{ArenaSpan, Pool, Slice};
use ob_wire_nvme::pdu::ADMIN_CAPSULE_DATA_MAX;
use ob_wire_nvme::text::Nqn;

use super::config::{TRANSFER_LEN_MIN, TargetConfig};
use super::shares::{Class, Holder, Lease, Shares};

/// Buffers that a service may ask for at once.
pub const LOANS_MAX: usize = 4;

/// What a service asked for at once, in that order.
pub type Loans = [Option<Loan>; LOANS_MAX];

/// Blocks of each size at least: a service may have half of them for one command.
const BLOCKS_MIN: usize = 4;

const SMALL_LEN: usize = 4 << 10;
const MIDDLE_LEN: usize = 16 << 10;

/// The pools.
pub(super) struct Buffers {
    capsules: Pool,
    /// By length of their blocks, the shortest first.
    transfers: Vec<(Class, Pool)>,
    compares: Pool,
    shares: Shares,
    connection_transfer_max: usize,
}

/// A buffer of the target's, counted for the connection whose command has it.
///
/// What is read for a service, what a host sent along with a command, and what an answer is sent from. Dropped, it goes
/// back; so it does with the answer that it is given to.
pub struct Loan {
    pub(super) slice: Slice,
    /// Parts that were cut off are counted with what they were cut from.
    pub(super) lease: Option<Lease>,
}

impl Loan {
    /// Keeps the memory and ends the loan: it is no more counted for the connection, and how much is kept in this way is
    /// for whoever keeps it to bound. The target's buffers are as many fewer until it is dropped.
    pub fn into_slice(self) -> Slice {
        self.slice
    }

    /// Takes the memory out for somebody who knows nothing of loans, such as a device of the service's own. It stays counted:
    /// [`Ticket::loan`] puts both together again.
    pub fn check_out(self) -> (Slice, Ticket) {
        (self.slice, Ticket(self.lease))
    }

    /// Keeps the first `len` bytes, if there are more.
    pub fn truncate(&mut self, len: usize) {
        self.slice.truncate(len);
    }

    /// Cuts off everything from `at` on, to be filled by a read of its own; [`Loan::join`] puts it back. `None` beyond the
    /// end.
    pub fn split_off(&mut self, at: usize) -> Option<Loan> {
        (at <= self.slice.len()).then(|| Loan { slice: self.slice.split_off(at), lease: None })
    }

    /// Puts together what lies side by side; gives both back where it does not.
    pub fn join(self, next: Loan) -> Result<Loan, (Loan, Loan)> {
        let (lease, other) = (self.lease, next.lease);
        match self.slice.join(next.slice) {
            Ok(slice) => Ok(Loan { slice, lease: lease.or(other) }),
            Err((slice, next)) => Err((Loan { slice, lease }, Loan { slice: next, lease: other })),
        }
    }
}

/// What is left of a loan whose memory is elsewhere. Dropped, the memory is no more counted.
pub struct Ticket(Option<Lease>);

impl Ticket {
    /// The loan, with the memory that was taken out of it.
    pub fn loan(self, slice: Slice) -> Loan {
        Loan { slice, lease: self.0 }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Ticket")
    }
}

impl Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.slice
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.slice
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Loan({:?})", self.slice)
    }
}

impl Buffers {
    /// Capsules on I/O queues bring up to `capsule_data_max` bytes.
    pub(super) fn new(config: &TargetConfig, capsule_data_max: u32) -> Self {
        let capsules =
            Pool::new(capsule_data_max.max(ADMIN_CAPSULE_DATA_MAX) as usize, config.capsule_buffers.max(1));
        let transfers = transfers(config);
        let compares_max = config.compares_max.max(1);
        let shares = Shares::new(|class| match class {
            Class::Capsule => capsules.blocks(),
            Class::Compare => compares_max,
            Class::Small | Class::Middle | Class::Large | Class::Huge => {
                let pool = transfers.iter().find(|(of, _)| *of == class);
                pool.map_or(0, |(_, pool)| pool.blocks())
            }
        });
        Self {
            capsules,
            transfers,
            compares: Pool::new(config.transfer_len(), compares_max * 2),
            shares,
            connection_transfer_max: config.connection_transfer_max,
        }
    }

    /// A new connection from an address.
    pub(super) fn connection_from(&mut self, address: IpAddr) -> Arc<Holder> {
        self.shares.connection_from(address)
    }

    /// A connection whose host has proved who it is.
    pub(super) fn connection_of(&mut self, host: &Nqn) -> Arc<Holder> {
        self.shares.connection_of(host)
    }

    /// A buffer for a capsule's data.
    pub(super) fn for_capsule(&self, holder: &Arc<Holder>, len: usize) -> Option<Loan> {
        self.block(holder, Class::Capsule, &self.capsules, len)
    }

    /// A buffer for a read, or for a write that is asked for: of the shortest size that fits and has one left for this
    /// connection.
    pub(super) fn for_transfer(&self, holder: &Arc<Holder>, len: usize) -> Option<Loan> {
        let held = self.held(holder);
        let fits = |pool: &Pool| {
            pool.block_len() >= len && (held == 0 || held + pool.block_len() <= self.connection_transfer_max)
        };
        let fitting = self.transfers.iter().filter(|(_, pool)| fits(pool));
        fitting.into_iter().find_map(|(class, pool)| self.block(holder, *class, pool, len))
    }

    /// All that a service wants for a command, or how many blocks came back because there was not enough. A connection that holds
    /// nothing gets it beyond its share, once that gives it one: it cannot hold less, and would wait for ever.
    pub(super) fn for_service(
        &self,
        holder: &Arc<Holder>,
        lens: &[Option<u32>; LOANS_MAX],
    ) -> Result<Loans, u64> {
        let holds_nothing = self.held(holder) == 0;
        let mut loans = Loans::default();
        let mut lent = 0;
        for (loan, len) in loans.iter_mut().zip(lens) {
            let Some(len) = len.map(|len| len as usize) else { continue };
            *loan = match self.for_transfer(holder, len) {
                None if holds_nothing && lent > 0 => self.beyond_share(holder, len),
                by_share => by_share,
            };
            if loan.is_none() {
                return Err(lent);
            }
            lent += 1;
        }
        Ok(loans)
    }

    fn beyond_share(&self, holder: &Arc<Holder>, len: usize) -> Option<Loan> {
        let fitting = self.transfers.iter().filter(|(_, pool)| pool.block_len() >= len);
        let lend = |(class, pool): &(Class, Pool)| {
            Some(Loan { slice: cut(pool, len)?, lease: Some(self.shares.lease(holder, *class)) })
        };
        fitting.into_iter().find_map(lend)
    }

    /// Whether a service can be lent buffers of these lengths for a command at all: no more than half of those that there are.
    pub(super) fn can_lend(&self, lens: &[usize]) -> bool {
        let size_of = |len: usize| self.transfers.iter().position(|(_, pool)| pool.block_len() >= len);
        let has_enough = |size: usize| {
            let wanted = lens.iter().filter(|len| size_of(**len) == Some(size)).count();
            self.transfers.get(size).is_some_and(|(_, pool)| wanted <= pool.blocks() / 2)
        };
        lens.len() <= LOANS_MAX && lens.iter().all(|len| size_of(*len).is_some_and(has_enough))
    }

    /// Bytes of the blocks for transfers that a connection holds.
    fn held(&self, holder: &Holder) -> usize {
        self.transfers.iter().map(|(class, pool)| holder.held(*class) * pool.block_len()).sum()
    }

    /// Whether no connection of this one's account gets a buffer for a comparison, or for a transfer of this length or a longer one.
    pub(super) fn are_spent(&self, holder: &Holder, is_compare: bool, len: usize) -> bool {
        if is_compare {
            return self.shares.left(holder, Class::Compare) == 0;
        }
        let fitting = self.transfers.iter().filter(|(_, pool)| pool.block_len() >= len);
        fitting.into_iter().all(|(class, _)| self.shares.left(holder, *class) == 0)
    }

    /// The first of the two buffers of a comparison; the lease is for both.
    pub(super) fn for_compare(&self, holder: &Arc<Holder>, len: usize) -> Option<Loan> {
        self.block(holder, Class::Compare, &self.compares, len)
    }

    /// The second of them.
    pub(super) fn for_compare_too(&self, len: usize) -> Option<Slice> {
        cut(&self.compares, len)
    }

    /// Whether buffers of this length are short for everybody, not only for a connection that has its share.
    pub(super) fn are_scarce(&self, len: usize) -> bool {
        let fitting = self.transfers.iter().find(|(_, pool)| pool.block_len() >= len);
        fitting.is_some_and(|(class, _)| self.shares.is_scarce(*class))
    }

    /// The same of buffers for capsules.
    pub(super) fn capsules_are_scarce(&self) -> bool {
        self.shares.is_scarce(Class::Capsule)
    }

    /// Changes when blocks have come back, or when somebody may have more of them. The two are not the same: a block may
    /// stay with a device or a service after the answer of its command, and its memory comes back later by itself.
    pub(super) fn returned(&self) -> u64 {
        self.pools().map(|pool| u64::from(pool.returned())).sum::<u64>() + self.shares.returned()
    }

    fn block(&self, holder: &Arc<Holder>, class: Class, pool: &Pool, len: usize) -> Option<Loan> {
        if !self.shares.may_lease(holder, class) {
            return None;
        }
        Some(Loan { slice: cut(pool, len)?, lease: Some(self.shares.lease(holder, class)) })
    }

    /// Where they lie, for registration.
    pub(super) fn arenas(&self) -> impl Iterator<Item = ArenaSpan> {
        self.pools().map(Pool::arena)
    }

    fn pools(&self) -> impl Iterator<Item = &Pool> {
        let transfers = self.transfers.iter().map(|(_, pool)| pool);
        [&self.capsules, &self.compares].into_iter().chain(transfers)
    }

    /// Bytes of the blocks that are in use.
    pub(super) fn memory_used(&self) -> usize {
        self.pools().map(|pool| pool.blocks_out() * pool.block_len()).sum()
    }

    /// Bytes of all of them.
    pub(super) fn memory(&self) -> usize {
        self.arenas().map(|arena| arena.len).sum()
    }
}

/// Half of the memory is for the largest transfers, a quarter for each of the others; where transfers may be longer than
/// [`TRANSFER_LEN_MIN`], half is for those, and the others share what is left as they would share all.
fn transfers(config: &TargetConfig) -> Vec<(Class, Pool)> {
    let longest = config.transfer_len();
    let has_huge = longest > TRANSFER_LEN_MIN;
    let memory = if has_huge { config.transfer_memory / 2 } else { config.transfer_memory };
    let pool = |share: usize, len: usize| Pool::new(len, (memory / share / len).max(BLOCKS_MIN));
    let mut pools = vec![
        (Class::Small, pool(4, SMALL_LEN)),
        (Class::Middle, pool(4, MIDDLE_LEN)),
        (Class::Large, pool(2, TRANSFER_LEN_MIN)),
    ];
    pools.extend(has_huge.then(|| (Class::Huge, pool(1, longest))));
    pools
}

fn cut(pool: &Pool, len: usize) -> Option<Slice> {
    if len > pool.block_len() {
        return None;
    }
    let mut slice = pool.take()?;
    slice.truncate(len);
    Some(slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_takes_the_shortest_that_fits_and_a_longer_one_when_those_are_out() {
        let config = TargetConfig { transfer_memory: 1 << 20, ..TargetConfig::default() };
        let mut buffers = Buffers::new(&config, 8192);
        let holder = buffers.connection_from(IpAddr::from([10, 0, 0, 1]));
        let small: Vec<Loan> = std::iter::from_fn(|| buffers.for_transfer(&holder, 512)).collect();
        assert_eq!(small.len(), 8 + 2 + 1, "an eighth of the blocks of every size");
        assert!(small.iter().all(|block| block.slice.len() == 512));
        assert_eq!(buffers.memory_used(), 8 * SMALL_LEN + 2 * MIDDLE_LEN + TRANSFER_LEN_MIN);
        drop(small);
        assert_eq!(buffers.memory_used(), 0);
        let large: Vec<Loan> =
            std::iter::from_fn(|| buffers.for_transfer(&holder, TRANSFER_LEN_MIN)).collect();
        assert_eq!(large.len(), 1);
        assert!(buffers.for_transfer(&holder, 4096).is_some(), "the large ones leave the small ones alone");
        assert!(buffers.for_transfer(&holder, TRANSFER_LEN_MIN + 1).is_none());
    }

    /// What is longer than all targets take has blocks of its own: half of the memory, of which a connection gets an eighth.
    #[test]
    fn the_longest_transfers_have_half_of_the_memory() {
        let config = TargetConfig { transfer_len_max: 1 << 20, ..TargetConfig::default() };
        let mut buffers = Buffers::new(&config, 8192);
        let count = |class: Class| {
            buffers.transfers.iter().find(|(of, _)| *of == class).map_or(0, |(_, pool)| pool.blocks())
        };
        let blocks = [Class::Small, Class::Middle, Class::Large, Class::Huge].map(count);
        assert_eq!(blocks, [2048, 512, 128, 32]);
        let holder = buffers.connection_from(IpAddr::from([10, 0, 0, 1]));
        let take =
            |len: usize| -> Vec<Loan> { std::iter::from_fn(|| buffers.for_transfer(&holder, len)).collect() };
        let huge = take(1 << 20);
        assert_eq!(huge.len(), 4, "as much as one may have at once");
        assert!(buffers.for_transfer(&holder, TRANSFER_LEN_MIN + 1).is_none());
        assert!(buffers.for_transfer(&holder, (1 << 20) + 1).is_none());
        drop(huge);
        let (large, most) = (take(TRANSFER_LEN_MIN + 1), 1 << 20);
        assert!(large.len() == 4 && large.iter().all(|loan| loan.len() == TRANSFER_LEN_MIN + 1));
        drop(large);
        assert!(buffers.can_lend(&[most; LOANS_MAX]) && !buffers.can_lend(&[most + 1]));
        assert_eq!(buffers.memory_used(), 0);
    }

    #[test]
    fn a_short_transfer_in_a_long_block_counts_as_what_it_takes_away() {
        let config = TargetConfig { connection_transfer_max: 300 << 10, ..TargetConfig::default() };
        let mut buffers = Buffers::new(&config, 8192);
        let holder = buffers.connection_from(IpAddr::from([10, 0, 0, 1]));
        let taken: Vec<Loan> = std::iter::from_fn(|| buffers.for_transfer(&holder, 512)).collect();
        let bytes = buffers.held(&holder);
        assert!(bytes <= 300 << 10 && taken.len() == 75, "{} blocks of {bytes} bytes", taken.len());
    }

    /// A connection's share of the pool of one thread of many is one large block, and a service needs two for some commands.
    #[test]
    fn a_connection_that_holds_nothing_is_lent_what_a_command_needs() {
        let config = TargetConfig { transfer_memory: 1 << 20, ..TargetConfig::default() };
        let mut buffers = Buffers::new(&config, 8192);
        let holder = buffers.connection_from(IpAddr::from([10, 0, 0, 1]));
        let two = [TRANSFER_LEN_MIN; 2];
        assert!(buffers.can_lend(&two) && !buffers.can_lend(&[TRANSFER_LEN_MIN; 3]));
        assert!(!buffers.can_lend(&[TRANSFER_LEN_MIN + 1]) && !buffers.can_lend(&[512; LOANS_MAX + 1]));
        let wanted = [Some(TRANSFER_LEN_MIN as u32), Some(TRANSFER_LEN_MIN as u32), None, None];
        let lent = buffers.for_service(&holder, &wanted).unwrap();
        assert_eq!(lent.iter().flatten().map(|loan| loan.len()).collect::<Vec<_>>(), two);
        assert_eq!(buffers.for_service(&holder, &wanted).unwrap_err(), 0, "now it holds something");
        drop(lent);
        let other = buffers.for_transfer(&holder, TRANSFER_LEN_MIN).unwrap();
        assert!(buffers.for_service(&holder, &wanted).is_err(), "what its other commands have counts");
        drop(other);
        assert!(buffers.for_service(&holder, &wanted).is_ok());
    }
}
