//! Numbers that mean one thing each.

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident: $ty:ty),* $(,)?) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $name(pub $ty);
            impl std::fmt::Display for $name {
                fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    self.0.fmt(formatter)
                }
            }
        )*
    };
}

ids! {
    /// The host's name for a command in flight, unique in its queue (Base §3.3.3.1, CDW0.CID).
    CommandId: u16,
    /// The controller's name for a solicited transfer (TCP §3.6.2.10, TTAG).
    TransferTag: u16,
    /// A namespace (Base §3.2.1, NSID): 0 names none, `FFFFFFFFh` all.
    NamespaceId: u32,
    /// A queue pair (Base §6.3, QID): 0 is the admin queue.
    QueueId: u16,
    /// A controller of a subsystem (Base §5.17.2.1, CNTLID).
    ControllerId: u16,
}

impl NamespaceId {
    /// No namespace.
    pub const NONE: Self = Self(0);
    /// Every namespace that is attached to the controller.
    pub const ALL: Self = Self(u32::MAX);
}

impl QueueId {
    /// The admin queue.
    pub const ADMIN: Self = Self(0);
}

impl ControllerId {
    /// In Connect: the target chooses (Base §6.3, the dynamic controller model).
    pub const DYNAMIC: Self = Self(0xFFFF);
    /// The first of the reserved values: real controllers stay below (Base §6.3).
    pub const RESERVED_FROM: Self = Self(0xFFF0);
}
