//! Where messages come from.

use std::cell::RefCell;
use std::rc::Rc;

use ob_core::Instant;
use ob_memory::{Shared, Slice};

use crate::wire::HEADER_LEN;

/// By what a front knows a message. Never used for two at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontKey(pub u64);

/// A message that has come, whole.
#[derive(Debug)]
pub struct Arrived {
    /// By what it is answered.
    pub key: FrontKey,
    /// Who sent it, as the host is told: queue or channel.
    pub from: u32,
    /// Since when it waits, wherever it was: so long ago is what it is held by.
    pub since: Instant,
    /// Its first bytes. Of bytes 24 to 39 the host sees the descriptor instead.
    pub header: [u8; HEADER_LEN],
    /// What follows: register 0 of its plans.
    pub payload: Option<Slice>,
    /// Where its answer goes, exactly as long as that will be: register 1 of its plans. What it holds until then means nothing.
    pub answer: Option<Slice>,
}

/// What a message is answered with.
#[derive(Debug)]
pub enum FrontAnswer {
    /// It went well, and these bytes are the answer: the memory that came as [`Arrived::answer`].
    Data(Slice),
    /// It went well, and these bytes are the answer; others read them too.
    Shared(Shared),
    /// How it went, in the words of the service; 0 is well. There are no bytes.
    Status(u16),
    /// Its host is gone, and no other has come in time; or its host has given it back.
    Nobody,
}

/// Where messages come from that are not of our own framing, such as an NVMe target. What it has given to the port stays there, under
/// a handle, until the port answers it: over lives of the host too, so nothing is ever given back.
pub trait Front {
    /// The next message. It is asked only while the host has granted receives: what it keeps meanwhile it must bound.
    fn next(&mut self, now: Instant) -> Option<Arrived>;

    /// Answers a message. Nothing more is heard of it.
    fn answer(&mut self, key: FrontKey, answer: FrontAnswer);

    /// The next message that its peer has given up. Of a plan of it nothing more is begun, and what it has sent comes to its end; the
    /// message is answered all the same, by a plan of the host's, or by the port if there is no host.
    fn gone(&mut self) -> Option<FrontKey>;

    /// When [`Front::next`] is to be asked again although nothing wakes the card, if it must.
    fn next_due(&self) -> Option<Instant> {
        None
    }
}

/// No front: of a port to which messages come by those who connect to its listeners, and by nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFront;

impl Front for NoFront {
    fn next(&mut self, _: Instant) -> Option<Arrived> {
        None
    }

    fn answer(&mut self, _: FrontKey, _: FrontAnswer) {}

    fn gone(&mut self) -> Option<FrontKey> {
        None
    }
}

/// A front that somebody else drives too, on the same thread: the service behind a target.
impl<F: Front> Front for Rc<RefCell<F>> {
    fn next(&mut self, now: Instant) -> Option<Arrived> {
        self.borrow_mut().next(now)
    }

    fn answer(&mut self, key: FrontKey, answer: FrontAnswer) {
        self.borrow_mut().answer(key, answer);
    }

    fn gone(&mut self) -> Option<FrontKey> {
        self.borrow_mut().gone()
    }

    fn next_due(&self) -> Option<Instant> {
        self.borrow().next_due()
    }
}
