//! Keepers of maps: sessions get one, or none, and it leaves, or dies, whatever it is at. And sessions end.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ob_sim::{Failure, Rng};

use super::asks::Shared;
use super::crowd::{Crowd, Role, pause};

/// Whether a host's session has a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keepers {
    Never,
    Always,
    /// They come and go.
    Sometimes,
}

impl Shared {
    /// Starts a keeper where there is none, or has the one that there is leave.
    pub(super) async fn change_keeper(
        self: Rc<Self>,
        crowd: Rc<Crowd>,
        number: usize,
        mut rng: Rng,
    ) -> Result<(), Failure> {
        let client = &self.hosts[number];
        if client.is_ending.get() {
            return Ok(());
        }
        if !client.is_kept.get() {
            return self.start_keeper(&crowd, number).await;
        }
        if rng.one_in(3) {
            if crowd.kill_keeper(number) {
                self.count("keepers killed");
                client.port.lose();
                client.is_kept.set(false);
            }
            return Ok(());
        }
        self.have_keeper_leave(number).await;
        Ok(())
    }

    /// Starts a keeper; there may be one at a time.
    pub(super) async fn start_keeper(&self, crowd: &Crowd, number: usize) -> Result<(), Failure> {
        let client = &self.hosts[number];
        let Some(session) = client.session.borrow().clone() else { return Ok(()) };
        if client.is_kept.replace(true) {
            return Ok(());
        }
        self.count("keepers started");
        let (kept, is_kept): (_, Rc<Cell<bool>>) = (Rc::clone(&session), Rc::clone(&client.is_kept));
        let port = client.port.clone();
        let keep = async move {
            let kept = kept.keep_maps().await;
            port.lose();
            is_kept.set(false);
            kept.map_err(|error| Failure::new(format!("host {number}: {error}")))
        };
        crowd.join(number, Role::Keeper, Box::pin(keep));
        // Whoever starts one has it begin before he goes on.
        crowd.poll_keeper(number);
        let mut second = pin!(session.keep_maps());
        let second = poll_fn(|context| Poll::Ready(second.as_mut().poll(context))).await;
        match second {
            Poll::Ready(Err(_)) => Ok(()),
            _ if !client.is_kept.get() => Ok(()),
            _ => Err(Failure::new(format!("host {number} has two keepers"))),
        }
    }

    /// Has a host's keeper leave, and waits until it is gone.
    pub(super) async fn have_keeper_leave(&self, number: usize) {
        let client = &self.hosts[number];
        let session = client.session.borrow().clone();
        let Some(session) = session.filter(|_| client.is_kept.get()) else { return };
        self.count("keepers left");
        session.leave_maps();
        drop(session);
        while client.is_kept.get() {
            pause().await;
        }
    }

    /// Has the target close what it keeps for a session: under those who ask, or when they are done; then there is another one.
    pub(super) async fn end_session(
        self: Rc<Self>,
        crowd: Rc<Crowd>,
        number: usize,
        mut rng: Rng,
    ) -> Result<(), Failure> {
        let client = &self.hosts[number];
        let Some(session) = client.session.borrow().clone() else { return Ok(()) };
        if client.is_ending.replace(true) {
            return Ok(());
        }
        if rng.one_in(2) {
            self.count("sessions ended in between");
            session.end().await;
            client.is_ending.set(false);
            return Ok(());
        }
        let was_kept = client.is_kept.get();
        self.have_keeper_leave(number).await;
        client.session.take();
        client.forget();
        while Rc::strong_count(&session) > 1 {
            pause().await;
        }
        self.count("sessions ended");
        session.end().await;
        drop(session);
        Rc::clone(&self).begin_session(number).await?;
        client.is_ending.set(false);
        if was_kept { self.start_keeper(&crowd, number).await } else { Ok(()) }
    }
}
