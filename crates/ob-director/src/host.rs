//! The way to the host's half of the service, as the director needs it.

use ob_wire_link::stream::FromCard;

/// A message of the host: both parts of it, as they came.
pub trait HostFrame {
    /// The header.
    fn inline(&self) -> &[u8];

    /// What follows it.
    fn payload(&self) -> &[u8];
}

/// What comes from the host's side.
#[derive(Debug)]
pub enum HostEvent<F> {
    /// A host is there: its first frame follows.
    Arrived,
    /// It says something.
    Frame(F),
    /// It is gone. Nothing that was sent to it and not answered will be.
    Gone,
}

/// One ordered stream to the host, and one back.
pub trait HostPort {
    /// What the host's messages come in.
    type Frame: HostFrame;

    /// Whether a frame with so many bytes of payload is taken now.
    fn has_room(&self, payload_len: usize) -> bool;

    /// Puts a frame into the stream. Without room, which [`HostPort::has_room`] says, or without a host it is lost.
    fn send(&mut self, frame: &FromCard<'_>);

    /// What comes next from the host's side.
    fn poll(&mut self) -> Option<HostEvent<Self::Frame>>;

    /// Ends the stream: the host has said what cannot be. The text is for people. [`HostEvent::Gone`] follows.
    fn close(&mut self, why: &str);
}
