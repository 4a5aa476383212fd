//! Who holds how much of the payload memory, and who may have more.
//!
//! ```text
//!   Lease ─▶ Holder (a connection) ─▶ Account (a host that proved who it is, or an address) ─▶ Totals
//! ```
//!
//! The rule, for each class of blocks alone: **an account gets another block while it holds a smaller part of the free
//! blocks than the free ones are of all.** Where nobody else is, that gives it three eighths; as blocks become scarce, the
//! largest holders are the first to get no more. Were the bound in proportion to what is free, accounts that come one
//! after the other and never give anything back would leave a half, a quarter, an eighth; with the square, what is left
//! after `n` of them is about an `n`th, and an account without any gets one as long as there is one. No share has to be
//! known beforehand, and nobody loses what nobody else wants. Connections share what their account may still have in the
//! same way, except for comparisons, of which there are few.
//!
//! A name that was not proved is anybody's to say, so hosts that do not authenticate are known by their address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ob_wire_nvme::text::Nqn;

/// The kinds of blocks that are shared apart from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Capsule,
    /// Transfers, by the length of their blocks.
    Small,
    Middle,
    Large,
    Huge,
    /// Comparisons: a lease of this class is for both of their buffers.
    Compare,
}

/// How many there are.
const CLASSES: usize = 6;
/// How much less than its account a connection gets: with this one gets an eighth of all blocks at most.
const CONNECTION_CAUTION: u64 = 4;

/// Counts by class. The target alone changes them, so no exchange has to be one step; they are atomic for a target to be
/// movable between threads.
#[derive(Debug, Default)]
struct Tally([AtomicU32; CLASSES]);

impl Tally {
    fn get(&self, class: Class) -> u32 {
        self.0[class as usize].load(Ordering::Relaxed)
    }

    fn add(&self, class: Class) {
        self.0[class as usize].store(self.get(class) + 1, Ordering::Relaxed);
    }

    fn subtract(&self, class: Class) {
        self.0[class as usize].store(self.get(class).saturating_sub(1), Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Totals {
    held: Tally,
    /// Leases that ended.
    returned: AtomicU64,
}

/// Whose memory it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Host(Nqn),
    Address(IpAddr),
}

/// Whom a connection is of, as far as sharing goes. Never used twice; the default is nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AccountId(pub(super) u64);

#[derive(Debug)]
struct Account {
    id: AccountId,
    held: Tally,
    totals: Arc<Totals>,
}

/// A connection as one that holds blocks, on behalf of an account.
#[derive(Debug)]
pub(super) struct Holder {
    held: Tally,
    account: Arc<Account>,
    is_proved: bool,
}

impl Holder {
    pub(super) fn account(&self) -> AccountId {
        self.account.id
    }

    /// Whether it is of a host that proved who it is.
    pub(super) fn is_proved(&self) -> bool {
        self.is_proved
    }

    pub(super) fn held(&self, class: Class) -> usize {
        self.held.get(class) as usize
    }
}

/// A block that is held; dropped, it is held no more.
#[derive(Debug)]
pub(super) struct Lease {
    holder: Arc<Holder>,
    class: Class,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Holder { held, account, .. } = &*self.holder;
        held.subtract(self.class);
        account.held.subtract(self.class);
        account.totals.held.subtract(self.class);
        let returned = &account.totals.returned;
        returned.store(returned.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// All accounts, and how many blocks there are for them.
pub(super) struct Shares {
    totals: Arc<Totals>,
    blocks: [u32; CLASSES],
    accounts: BTreeMap<Name, Weak<Account>>,
    /// How many accounts there were, ever.
    accounts_made: u64,
}

impl Shares {
    /// `blocks` says how many there are of a class.
    pub(super) fn new(blocks: impl Fn(Class) -> usize) -> Self {
        let classes =
            [Class::Capsule, Class::Small, Class::Middle, Class::Large, Class::Huge, Class::Compare];
        let blocks = classes.map(|class| u32::try_from(blocks(class)).unwrap_or(u32::MAX));
        Self { totals: Arc::default(), blocks, accounts: BTreeMap::new(), accounts_made: 0 }
    }

    /// A connection from an address.
    pub(super) fn connection_from(&mut self, address: IpAddr) -> Arc<Holder> {
        self.holder(Name::Address(network_of(address)), false)
    }

    /// A connection of a host that proved who it is.
    pub(super) fn connection_of(&mut self, host: &Nqn) -> Arc<Holder> {
        self.holder(Name::Host(host.clone()), true)
    }

    fn holder(&mut self, name: Name, is_proved: bool) -> Arc<Holder> {
        let account = self.accounts.get(&name).and_then(Weak::upgrade).unwrap_or_else(|| {
            // There are never more accounts than connections, and leases of connections that are gone.
            self.accounts.retain(|_, account| account.strong_count() > 0);
            self.accounts_made += 1;
            let id = AccountId(self.accounts_made);
            let account = Arc::new(Account { id, held: Tally::default(), totals: Arc::clone(&self.totals) });
            self.accounts.insert(name, Arc::downgrade(&account));
            account
        });
        Arc::new(Holder { held: Tally::default(), account, is_proved })
    }

    /// Whether the rule gives one more block of a class.
    pub(super) fn may_lease(&self, holder: &Holder, class: Class) -> bool {
        let all = u64::from(self.blocks[class as usize]);
        let left = self.left(holder, class);
        if class == Class::Compare {
            // There are so few that a connection's part would be none.
            return left > 0;
        }
        u64::from(holder.held.get(class)) * all * CONNECTION_CAUTION < left * left
    }

    /// How many more blocks of a class the account of a connection may have, if nobody else takes any.
    pub(super) fn left(&self, holder: &Holder, class: Class) -> u64 {
        let all = u64::from(self.blocks[class as usize]);
        let free = all.saturating_sub(u64::from(self.totals.held.get(class)));
        let account_max = (free * free).div_ceil(all.max(1));
        account_max.saturating_sub(u64::from(holder.account.held.get(class)))
    }

    /// Whether few are left for anybody: half of them or less, which no account takes by itself.
    pub(super) fn is_scarce(&self, class: Class) -> bool {
        let all = self.blocks[class as usize];
        all.saturating_sub(self.totals.held.get(class)) <= all / 2
    }

    /// Counts a block as held.
    pub(super) fn lease(&self, holder: &Arc<Holder>, class: Class) -> Lease {
        let Holder { held, account, .. } = &**holder;
        held.add(class);
        account.held.add(class);
        self.totals.held.add(class);
        Lease { holder: Arc::clone(holder), class }
    }

    /// How many leases have ended.
    pub(super) fn returned(&self) -> u64 {
        self.totals.returned.load(Ordering::Relaxed)
    }
}

/// An address as the one who has it is known: a host gets a whole prefix of IPv6 and may use any address in it.
pub(super) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(shares: &Shares, holder: &Arc<Holder>) -> Vec<Lease> {
        let may_lease = || shares.may_lease(holder, Class::Large);
        std::iter::from_fn(|| may_lease().then(|| shares.lease(holder, Class::Large))).collect()
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn accounts_that_give_nothing_back_leave_something_for_those_that_come_later() {
        let mut shares = Shares::new(|_| 256);
        let mut taken = Vec::new();
        for last in 1..=25 {
            let free = 256 - taken.iter().map(Vec::len).sum::<usize>();
            // More connections than there are blocks: what one of them may not take, another does not get either.
            let holders: Vec<_> = (0..300).map(|_| shares.connection_from(address(last))).collect();
            let held: Vec<_> = holders.iter().flat_map(|holder| greedy(&shares, holder)).collect();
            assert!(!held.is_empty() && held.len() <= free * 2 / 5 + 1, "{} of {free}", held.len());
            taken.push(held);
        }
        taken.clear();
        let alone = shares.connection_from(address(1));
        assert_eq!(greedy(&shares, &alone).len(), 30, "an eighth, since all that was held came back");
    }

    #[test]
    fn a_connection_that_has_nothing_gets_something_beside_greedy_ones_of_its_own_account() {
        let mut shares = Shares::new(|_| 256);
        let greedy_ones: Vec<_> = (0..24).map(|_| shares.connection_from(address(1))).collect();
        let held: Vec<_> = greedy_ones.iter().map(|holder| greedy(&shares, holder)).collect();
        let honest = shares.connection_from(address(1));
        assert!(!greedy(&shares, &honest).is_empty());
        drop(held);
        assert_eq!(shares.totals.held.get(Class::Large), 0);
        assert_eq!(shares.accounts.len(), 1);
    }

    #[test]
    fn accounts_are_networks_until_a_name_is_proved() {
        let mut shares = Shares::new(|_| 9);
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        let one = shares.connection_from(parse("2001:db8::1"));
        let same = shares.connection_from(parse("2001:db8::ffff:0:2"));
        let mapped = shares.connection_from(parse("::ffff:10.0.0.1"));
        let plain = shares.connection_from(parse("10.0.0.1"));
        assert!(Arc::ptr_eq(&one.account, &same.account) && Arc::ptr_eq(&mapped.account, &plain.account));
        let proved = shares.connection_of(&Nqn::new("nqn.2026-01.example:host").unwrap());
        assert!(!Arc::ptr_eq(&plain.account, &proved.account) && proved.is_proved() && !plain.is_proved());
        drop((one, same, mapped, plain));
        let _new = shares.connection_from(parse("10.0.0.2"));
        assert_eq!(shares.accounts.len(), 2, "those of nobody are forgotten");
    }
}
