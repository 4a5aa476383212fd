//! Rounds of a host over several ports, whose cards say something whenever they want to (I2).

use std::collections::VecDeque;

use ob_volume::tier::Looks;
use proptest::prelude::*;

/// In the order in which cards have said it.
#[derive(Clone, Copy, Debug)]
enum Said {
    Done(u32),
    Header(u32),
}

/// Rings into which cards say something whenever they want to: between any two steps of the host.
struct Rings {
    rings: Vec<VecDeque<Said>>,
    said: u32,
    /// What comes next: into which ring, and whether it is a header.
    plan: std::vec::IntoIter<(usize, bool, u8)>,
    looks: Looks<u32>,
    answered: usize,
}

impl Rings {
    fn say_some(&mut self) {
        let mut most = 3;
        for (ring, is_header, more) in self.plan.by_ref() {
            let (count, said) = (self.rings.len(), self.said);
            self.said += 1;
            self.rings[ring % count].push_back(if is_header { Said::Header(said) } else { Said::Done(said) });
            most -= 1;
            if more == 0 || most == 0 {
                break;
            }
        }
    }

    /// Whether nothing was left.
    fn look_at(&mut self, ring: usize, most: usize) -> bool {
        for _ in 0..most {
            match self.rings[ring].pop_front() {
                None => return true,
                Some(Said::Header(said)) => self.looks.find(said),
                Some(Said::Done(_)) => {}
            }
            self.say_some();
        }
        false
    }

    fn round(&mut self, most: usize) {
        for ring in 0..self.rings.len() {
            self.look_at(ring, most);
            self.say_some();
        }
        self.looks.first_over();
        let mut are_empty = true;
        for ring in 0..self.rings.len() {
            are_empty &= self.look_at(ring, most);
            self.say_some();
        }
        self.looks.second_over(are_empty);
        while let Some(header) = self.looks.next_ripe() {
            let is_older = |said: &Said| matches!(said, Said::Done(done) if *done < header);
            let left = self.rings.iter().flatten().find(|said| is_older(said));
            assert!(left.is_none(), "header {header} is looked up before {left:?} is applied");
            self.answered += 1;
        }
    }
}

proptest! {
    /// Whenever a header is looked up, all completions that any card has told before it were taken; and each header is, in the end.
    #[test]
    fn nothing_older_is_left_behind_a_header(
        ports in 2..5_usize,
        most in 1..6_usize,
        plan in proptest::collection::vec((0..4_usize, any::<bool>(), 0..3_u8), 1..200),
    ) {
        let headers = plan.iter().filter(|(_, is_header, _)| *is_header).count();
        let rings = vec![VecDeque::new(); ports];
        let mut rings = Rings { rings, said: 0, plan: plan.into_iter(), looks: Looks::default(), answered: 0 };
        let mut rounds = 0;
        while rings.answered < headers {
            rings.say_some();
            rings.round(most);
            rounds += 1;
            prop_assert!(rounds < 1000, "{} of {headers}", rings.answered);
        }
        prop_assert!(rings.looks.is_empty());
    }
}
