//! The checker: what was pushed, received, answered and taken in one life of a group.
//!
//! ```text
//!   producer ── pushed ──▶ ring ── received ──▶ card ── answered ──▶ ring ── taken ──▶ consumer
//!                 n            n, n+1, … each once            s, s+1, … each once
//! ```

use ob_core::Incarnation;

use super::content::{Name, Response};

/// What must never be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("{name} appeared in {life} of the group")]
    EarlierLife { name: Name, life: Incarnation },
    #[error("the card received {name}, but {pushed} of that producer's were pushed")]
    NeverPushed { name: Name, pushed: u64 },
    #[error("the card received {name}, but number {expected} of that producer was next")]
    RequestOrder { name: Name, expected: u64 },
    #[error("a host thread took response {number}, but {expected} was next")]
    ResponseOrder { number: u64, expected: u64 },
    #[error("a host thread took response {number}, but only {answered} were made")]
    NeverAnswered { number: u64, answered: u64 },
    #[error("response {number} answers {name}, but was made for {expected}")]
    WrongRequest { number: u64, name: Name, expected: Name },
    #[error("{what} arrived with other bytes than it was sent with")]
    Content { what: String },
}

/// One life of a group, as an outsider who sees both halves knows it.
pub(super) struct Ledger {
    life: Incarnation,
    /// For each producer, how many messages it has pushed and how many of them the card has received.
    producers: Vec<(u64, u64)>,
    /// The request behind each response, by number.
    answered: Vec<Name>,
    taken: u64,
}

impl Ledger {
    pub(super) fn new(life: Incarnation, producers: usize) -> Self {
        Self { life, producers: vec![(0, 0); producers], answered: Vec::new(), taken: 0 }
    }

    /// The name of a producer's next message.
    pub(super) fn next_name(&self, producer: usize) -> Name {
        Name { life: self.life.0, producer: producer as u64, number: self.producers[producer].0 }
    }

    /// A producer's push was accepted.
    pub(super) fn pushed(&mut self, producer: usize) {
        self.producers[producer].0 += 1;
    }

    /// The card received a request; `whole` if its bytes are the ones that were sent.
    pub(super) fn received(&mut self, name: Name, whole: bool) -> Result<(), Violation> {
        self.check_life(name)?;
        let unknown = Violation::NeverPushed { name, pushed: 0 };
        let (pushed, received) = self.producers.get_mut(name.producer as usize).ok_or(unknown)?;
        if name.number >= *pushed {
            return Err(Violation::NeverPushed { name, pushed: *pushed });
        }
        if name.number != *received {
            return Err(Violation::RequestOrder { name, expected: *received });
        }
        *received += 1;
        if whole { Ok(()) } else { Err(Violation::Content { what: name.to_string() }) }
    }

    /// The card made a response; its number.
    pub(super) fn answered(&mut self, name: Name) -> u64 {
        self.answered.push(name);
        self.answered.len() as u64 - 1
    }

    /// A host thread took a response; `whole` if its bytes are the ones that were sent.
    pub(super) fn taken(&mut self, response: Response, whole: bool) -> Result<(), Violation> {
        let Response { number, name } = response;
        self.check_life(name)?;
        let answered = self.answered.len() as u64;
        let Some(expected) = self.answered.get(number as usize).copied() else {
            return Err(Violation::NeverAnswered { number, answered });
        };
        if number != self.taken {
            return Err(Violation::ResponseOrder { number, expected: self.taken });
        }
        if name != expected {
            return Err(Violation::WrongRequest { number, name, expected });
        }
        self.taken += 1;
        if whole { Ok(()) } else { Err(Violation::Content { what: format!("response {number}") }) }
    }

    /// Pushed and not yet received; received and their response not yet taken.
    pub(super) fn outstanding(&self) -> (u64, u64) {
        let (pushed, received) =
            self.producers.iter().fold((0, 0), |sum, (pushed, received)| (sum.0 + pushed, sum.1 + received));
        (pushed - received, received - self.taken)
    }

    pub(super) fn pushed_in_all(&self) -> u64 {
        self.producers.iter().map(|(pushed, _)| pushed).sum()
    }

    fn check_life(&self, name: Name) -> Result<(), Violation> {
        if name.life == self.life.0 {
            return Ok(());
        }
        Err(Violation::EarlierLife { name, life: self.life })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> Name {
        Name { life: 5, producer: 1, number }
    }

    /// Three pushed, one received, one answered.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(Incarnation(5), 2);
        (0..3).for_each(|_| ledger.pushed(1));
        ledger.received(name(0), true).unwrap();
        ledger.answered(name(0));
        ledger
    }

    #[test]
    fn what_should_be_passes() {
        let mut ledger = ledger();
        ledger.taken(Response { number: 0, name: name(0) }, true).unwrap();
        assert_eq!(ledger.outstanding(), (2, 0));
        for number in 1..3 {
            ledger.received(name(number), true).unwrap();
            let response = ledger.answered(name(number));
            ledger.taken(Response { number: response, name: name(number) }, true).unwrap();
        }
        assert_eq!((ledger.outstanding(), ledger.pushed_in_all()), ((0, 0), 3));
    }

    #[test]
    fn each_wrong_request_is_found() {
        let find = |name, whole| ledger().received(name, whole).unwrap_err();
        let old = Name { life: 4, ..name(1) };
        assert!(matches!(find(old, true), Violation::EarlierLife { .. }));
        assert!(matches!(find(name(0), true), Violation::RequestOrder { expected: 1, .. }), "twice");
        assert!(matches!(find(name(2), true), Violation::RequestOrder { expected: 1, .. }), "one skipped");
        assert!(matches!(find(name(3), true), Violation::NeverPushed { pushed: 3, .. }));
        let stranger = Name { producer: 9, ..name(0) };
        assert!(matches!(find(stranger, true), Violation::NeverPushed { .. }));
        assert!(matches!(find(name(1), false), Violation::Content { .. }));
    }

    #[test]
    fn each_wrong_response_is_found() {
        let response = Response { number: 0, name: name(0) };
        let find = |response, whole| ledger().taken(response, whole).unwrap_err();
        let old = Name { life: 4, ..name(0) };
        assert!(matches!(find(Response { name: old, ..response }, true), Violation::EarlierLife { .. }));
        let early = Response { number: 1, ..response };
        assert!(matches!(find(early, true), Violation::NeverAnswered { answered: 1, .. }));
        let mixed = Response { name: name(1), ..response };
        assert!(matches!(find(mixed, true), Violation::WrongRequest { .. }));
        assert!(matches!(find(response, false), Violation::Content { .. }));
        let mut ledger = ledger();
        ledger.taken(response, true).unwrap();
        let twice = ledger.taken(response, true).unwrap_err();
        assert_eq!(twice, Violation::ResponseOrder { number: 0, expected: 1 });
    }
}
