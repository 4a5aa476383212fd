//! The link: what joins a card and its hosts.
//!
//! ```text
//!    host process                                                            card process
//!   ┌──────────────────────────┐   control socket: frames (docs/wire/link)  ┌─────────────────────────┐
//!   │ HostLink ── agent thread │ ◀────────────────────────────────────────▶ │ CardLink (on a reactor) │
//!   │   │                      │                                            │   │                     │
//!   │   └ HostGroup            │   regions: rings (docs/wire/ring)          │   └ CardAttachment      │
//!   │      sender, receiver ───┼──▶ [ host memory ] ◀── Dma (card only) ────┼──── CardDma             │
//!   └──────────────────────────┘   bells: futex words in host memory        └─────────────────────────┘
//! ```
//!
//! | kind | regions | transfers ([`CardDma`]) | host wakes card | card wakes host |
//! |---|---|---|---|---|
//! | `shm` | memory files that the card made and sealed | copies | packet on the socket | futex |
//! | `model` | the same | copies, when they are due ([`Costs`]) | the same | futex, when due |
//! | `tcp` | the host's own memory | frames, executed by its agent | frame | frame, then futex |
//!
//! The protocol is in pure cores that the simulator runs as they are: [`CardAttachment`], [`HostCore`], the
//! transfers over frames ([`FrameDma`]). The drivers around them, [`CardLink`] and [`HostLink`], own the sockets.
//! A DPU's own engines go behind [`CardDma`]: see `docs/porting.md`.
//!
//! Nothing that a host process does can stop the card, with two exceptions (`docs/wire/link.md`, "What a host process can
//! do"): sockets are used with per-call non-blocking flags, so that shared descriptor flags do not matter; regions cannot
//! shrink; the death of the process is seen even if children hold its sockets open, on one machine by its process
//! descriptor, on `tcp` because it does not answer.

mod attachment;
mod card_dma;
mod card_link;
mod card_loop;
mod connection;
mod frame_dma;
mod group;
mod host_core;
mod host_link;
pub mod memory_file;
mod model;
mod plant;
mod sequencer;

pub use attachment::{CardAttachment, CardEvent, Identity};
pub use card_dma::{CardDma, CardEngine, Wake};
pub use card_link::{CardLink, CardLinkConfig, CardLinkError, HostReport, Listen};
pub use card_loop::{CardLoop, Turn};
pub use frame_dma::FrameDma;
pub use group::{GroupClosedReason, GroupRefusal};
pub use host_core::{HostCore, HostEvent, OpenedGroup};
pub use host_link::{
    AttachError, Endpoint, HostGroup, HostLink, HostLinkConfig, OpenGroupError, Over, WaitError,
};
pub use model::{Costs, ModelDma};
pub use ob_core::{AddressRange, address_bits};
pub use ob_ring::{CardService, GroupKey};
pub use ob_wire_link::frame::LinkKind;
pub use ob_wire_link::group::GroupSizes;

/// The peer said something that the protocol does not allow. It is told so and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Bytes that are no frame.
    #[error("{0}")]
    Frame(#[from] ob_wire_link::frame::FrameError),
    /// A frame that has no business here.
    #[error("a frame of this type is not expected now")]
    Unexpected,
    /// A transfer's answer that fits none.
    #[error("an answer that fits no transfer")]
    Answer,
    /// Counts of sequenced frames that cannot be.
    #[error("a count of frames that cannot be")]
    Count,
    /// The peer does not take what is sent to it.
    #[error("the peer does not read what is sent to it")]
    Overflow,
}
