//! What stands behind the rings on the card.

use ob_core::{AttachmentId, GroupId, Instant};

use crate::batch::Batch;
use crate::bulk::BulkDone;
use crate::card_send::CardSender;

/// A group of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// The host.
    pub attachment: AttachmentId,
    /// Its group.
    pub group: GroupId,
}

/// What the card does with requests. Services implement it; the link calls it on the reactor's thread.
pub trait CardService {
    /// A host wants a group for the service of this number; a text for people says why not.
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String>;

    /// Requests arrived. Responses may be given now or later, in [`CardService::responses`].
    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender);

    /// The group's turn to deliver responses that wait.
    fn responses(&mut self, key: GroupKey, responses: &mut CardSender);

    /// A transfer that the service gave to [`CardSender::transfer`] is over, well or not. Without this the buffer goes
    /// back where it came from.
    fn transferred(&mut self, key: GroupKey, done: BulkDone, responses: &mut CardSender) {
        let _ = (key, done, responses);
    }

    /// From now on nothing of this host's groups begins that has not begun yet, or it does again. A host across a network may
    /// have died without the card knowing, and its next life be here already: until it has shown that it lives, what it
    /// asked for must not take effect beside what its next life does. Its groups keep what they have, and what has begun
    /// goes on.
    fn suspended(&mut self, attachment: AttachmentId, is_suspended: bool) {
        let _ = (attachment, is_suspended);
    }

    /// The group is gone. Transfers that were not over are gone with it, and their buffers go back where they came from.
    fn closed(&mut self, key: GroupKey);

    /// Moves on what the service does by itself, its devices above all; `true` if something did. Called in every turn,
    /// before responses are asked for.
    fn poll(&mut self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// When the service must be polled again although nothing wakes the card, if it must.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// Adds the groups that have responses which came from elsewhere than the link, since the link last asked for them. A group
    /// that is left out waits for the next turn, which may be long in coming.
    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        let _ = groups;
    }

    /// A message of the ordered channel.
    fn channel(&mut self, attachment: AttachmentId, message: &[u8]);
}
