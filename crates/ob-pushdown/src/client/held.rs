//! What the target keeps for a session, and how a session ends.

use std::collections::BTreeSet;
use std::sync::Mutex;

use ob_wire_nvme::pushdown::Function;

use super::file::lock;
use super::session::Session;
use super::transport::{CommandData, Transport, TransportError};

/// The numbers of files and plans that the target was not told to close or to forget.
#[derive(Default)]
pub(super) struct Held(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    files: BTreeSet<u64>,
    plans: BTreeSet<u64>,
}

impl Held {
    pub(super) fn file(&self, number: u64) {
        lock(&self.0).files.insert(number);
    }

    pub(super) fn plan(&self, number: u64) {
        lock(&self.0).plans.insert(number);
    }

    /// The target is told this.
    pub(super) fn is_told(&self, function: Function) {
        match function {
            Function::Close(number) => _ = lock(&self.0).files.remove(&number),
            Function::Forget(number) => _ = lock(&self.0).plans.remove(&number),
            _ => {}
        }
    }

    /// What it was not told yet.
    fn next(&self) -> Option<Function> {
        let mut numbers = lock(&self.0);
        let plan = numbers.plans.pop_first().map(Function::Forget);
        plan.or_else(|| numbers.files.pop_first().map(Function::Close))
    }
}

impl<T: Transport> Session<T> {
    /// Has the target close all files and forget all plans that it keeps for this session, also those that somebody still has here: whoever asks
    /// by one again has it opened anew.
    ///
    /// A connection of the program's own takes all of that along when it ends. One of a kernel's does not: it outlives the programs above it,
    /// and what they leave behind at the target takes the room of others for a while.
    pub async fn end(&self) {
        // Whoever waits to write a file waits for this.
        while let Some((function, _hold)) = self.chores.next_told() {
            if self.close(function).await.is_err() {
                return;
            }
        }
        while let Some(function) = self.held.next() {
            if self.close(function).await.is_err() {
                return;
            }
        }
    }

    /// Nobody is there any more if this fails: what the target says to it does not matter.
    async fn close(&self, function: Function) -> Result<(), TransportError> {
        self.held.is_told(function);
        match self.execute(function, CommandData::None).await {
            Err(error @ TransportError::Broken(_)) => Err(error),
            _ => Ok(()),
        }
    }
}
