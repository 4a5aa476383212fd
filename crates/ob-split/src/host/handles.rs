//! What handles mean to the host: messages that it has the headers of, card memory that it was granted, plans under way.

use std::collections::HashMap;

use super::port::PostError;
use crate::wire::{Completion, CompletionStatus, Handle};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// Bytes of the message, or of the memory; 0 of a number of the host's own.
    len: u32,
    /// The plan about it, while one is under way.
    plan: Option<UnderWay>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnderWay {
    /// Whether it answers the message, which then is over if it goes well.
    is_answering: bool,
}

/// All of them.
#[derive(Default)]
pub(super) struct Handles {
    known: HashMap<Handle, Known>,
    held: usize,
    held_max: usize,
    plans: u32,
    plans_max: u32,
}

/// Entries for which there is room from the beginning.
const READY: usize = 1024;

impl Handles {
    /// No more than this.
    pub(super) fn limit(&mut self, held_max: usize, plans_max: u32) {
        (self.held_max, self.plans_max) = (held_max, plans_max);
        self.known.reserve(READY.min(held_max.saturating_add(plans_max as usize)));
    }

    /// How many plans are under way.
    pub(super) const fn plans(&self) -> u32 {
        self.plans
    }

    /// The card has given out a handle; `None` if it cannot.
    pub(super) fn given(&mut self, handle: Handle, len: u32) -> Option<()> {
        if handle.is_of_host() || self.held >= self.held_max || self.known.contains_key(&handle) {
            return None;
        }
        self.known.insert(handle, Known { len, plan: None });
        self.held += 1;
        Some(())
    }

    /// Whether a plan about it may be posted: one at a time, of a message or of a number of the host's own.
    pub(super) fn check_post(&self, handle: Handle) -> Result<(), PostError> {
        if self.plans >= self.plans_max {
            return Err(PostError::TooMany);
        }
        match self.known.get(&handle) {
            Some(Known { plan: Some(_), .. }) => Err(PostError::Busy(handle)),
            None if !handle.is_of_host() => Err(PostError::UnknownHandle(handle)),
            None | Some(_) => Ok(()),
        }
    }

    /// A plan about it is under way.
    pub(super) fn posted(&mut self, handle: Handle, is_answering: bool) {
        let known = self.known.entry(handle).or_insert(Known { len: 0, plan: None });
        known.plan = Some(UnderWay { is_answering });
        self.plans += 1;
    }

    /// A piece of a plan is over; `None` if there is no such plan.
    pub(super) fn done(&mut self, completion: &Completion) -> Option<()> {
        let handle = completion.handle;
        let known = self.known.get_mut(&handle)?;
        let plan = known.plan?;
        if completion.has_more {
            return Some(());
        }
        known.plan = None;
        self.plans -= 1;
        // A message that its peer has given up is answered too, so that nobody doubts when its handle is free.
        let is_answered = plan.is_answering && completion.status == CompletionStatus::Good;
        if handle.is_of_host() {
            self.known.remove(&handle);
        } else if is_answered {
            self.given_back(handle);
        }
        Some(())
    }

    /// How many bytes a handle has that may be given back.
    pub(super) fn check_give_back(&self, handle: Handle) -> Result<u32, PostError> {
        match self.known.get(&handle) {
            Some(Known { plan: Some(_), .. }) => Err(PostError::Busy(handle)),
            Some(Known { len, plan: None }) => Ok(*len),
            None => Err(PostError::UnknownHandle(handle)),
        }
    }

    /// It is the card's again.
    pub(super) fn given_back(&mut self, handle: Handle) {
        if self.known.remove(&handle).is_some() {
            self.held -= 1;
        }
    }
}
