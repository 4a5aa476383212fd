//! A type for every id, so that no two can be confused.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, concat!($prefix, "{}"), self.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(self, formatter)
            }
        }
    };
}
pub(crate) use id;

id!(
    /// What a caller writes on an operation to know its completion by. Drivers carry it and never look at it.
    Token(u64),
    "token "
);
id!(
    /// One memory region of one attachment.
    RegionId(u32),
    "region "
);
id!(
    /// A notification group: one request ring and one response ring.
    GroupId(u32),
    "group "
);
id!(
    /// One host attached to one card, from handshake to end. Never used twice in a card's life.
    AttachmentId(u64),
    "attachment "
);
id!(
    /// Which life of a process this is. Grows by one at every start, so that what an earlier life left behind
    /// (a delayed write, an old acknowledgement) is known for what it is.
    Incarnation(u64),
    "incarnation "
);
id!(
    /// One connection of a [`crate::Net`].
    ConnectionId(u64),
    "connection "
);
id!(
    /// One listening address of a [`crate::Net`].
    ListenerId(u32),
    "listener "
);
id!(
    /// A file or directory of the card's file system; never used twice on one device.
    NodeId(u64),
    "node "
);
