//! The engine that carries one attachment's transfers.

use std::collections::VecDeque;

use ob_core::{
    Bell, Clock, Dma, DmaCompletion, DmaCounts, DmaError, DmaOp, Doorbell, Instant, Refused, RegionId, Token,
};
use ob_memory::Region;
use ob_ring::LocalDma;

use crate::frame_dma::FrameDma;
use crate::model::ModelDma;

/// One of the link's engines: those of `shm`, `model` and `tcp`, or a card's own.
pub struct CardDma<C> {
    engine: Engine<C>,
    /// Rung, but not to be heard before this instant.
    bells: VecDeque<(Instant, Bell)>,
    wakes: Vec<Wake>,
}

enum Engine<C> {
    Local(LocalDma),
    Model(Box<ModelDma<C>>),
    Frame(FrameDma),
    Own(Box<dyn CardEngine>),
}

/// An engine of a card's own, with all that the link needs of it (`docs/porting.md`). The simulator's is one.
pub trait CardEngine: Dma + Doorbell {
    /// Makes a region reachable.
    fn register(&mut self, id: RegionId, region: Region);

    /// Makes a region unreachable: what is under way there fails, and touches nothing from now on.
    fn unregister(&mut self, id: RegionId);

    /// The end: everything under way fails, and touches nothing from now on.
    fn shut_down(&mut self);

    /// Whether something is under way that wakes the card when it is over, or at [`Dma::next_due`].
    fn is_waiting(&self) -> bool;

    /// The next bell whose word has changed, if the card can wake sleepers by itself; where an agent does it, there is
    /// none.
    fn next_wake(&mut self, now: Instant) -> Option<Wake>;
}

/// A bell that was rung: the driver wakes those who sleep on this word.
pub struct Wake {
    /// The region.
    pub region: Region,
    /// The word's offset in it.
    pub offset: usize,
}

impl<C: Clock> CardDma<C> {
    /// `shm`.
    pub fn local(dma: LocalDma) -> Self {
        Self::new(Engine::Local(dma))
    }

    /// `model`.
    pub fn model(dma: ModelDma<C>) -> Self {
        Self::new(Engine::Model(Box::new(dma)))
    }

    /// `tcp`.
    pub fn frame(dma: FrameDma) -> Self {
        Self::new(Engine::Frame(dma))
    }

    /// A card's own.
    pub fn own(engine: Box<dyn CardEngine>) -> Self {
        Self::new(Engine::Own(engine))
    }

    fn new(engine: Engine<C>) -> Self {
        Self { engine, bells: VecDeque::new(), wakes: Vec::new() }
    }

    fn dma(&mut self) -> &mut dyn Dma {
        match &mut self.engine {
            Engine::Local(dma) => dma,
            Engine::Model(dma) => dma.as_mut(),
            Engine::Frame(dma) => dma,
            Engine::Own(engine) => engine.as_mut(),
        }
    }

    fn dma_ref(&self) -> &dyn Dma {
        match &self.engine {
            Engine::Local(dma) => dma,
            Engine::Model(dma) => dma.as_ref(),
            Engine::Frame(dma) => dma,
            Engine::Own(engine) => engine.as_ref(),
        }
    }

    fn local_engine(&mut self) -> Option<&mut LocalDma> {
        match &mut self.engine {
            Engine::Local(dma) => Some(dma),
            Engine::Model(dma) => Some(dma.inner_mut()),
            Engine::Frame(_) | Engine::Own(_) => None,
        }
    }

    /// Whether transfers are under way that only time or the agent will complete.
    pub(crate) fn is_waiting(&self) -> bool {
        match &self.engine {
            Engine::Local(_) => false,
            Engine::Model(dma) => dma.next_due().is_some(),
            Engine::Frame(dma) => dma.is_waiting(),
            Engine::Own(engine) => engine.is_waiting(),
        }
    }

    pub(crate) fn frames(&mut self) -> Option<&mut FrameDma> {
        match &mut self.engine {
            Engine::Frame(dma) => Some(dma),
            _ => None,
        }
    }

    /// Makes a region reachable; on a `tcp` link the agent has it already.
    pub(crate) fn register(&mut self, id: RegionId, region: Option<Region>) {
        let Some(region) = region else { return };
        match &mut self.engine {
            Engine::Own(engine) => engine.register(id, region),
            _ => self.local_engine().into_iter().for_each(|local| local.register(id, region.clone())),
        }
    }

    pub(crate) fn unregister(&mut self, id: RegionId) {
        match &mut self.engine {
            Engine::Own(engine) => engine.unregister(id),
            _ => self.local_engine().into_iter().for_each(|local| local.unregister(id)),
        }
    }

    pub(crate) fn shut_down(&mut self) {
        match &mut self.engine {
            Engine::Frame(dma) => dma.shut_down(),
            Engine::Local(dma) => dma.shut_down(),
            Engine::Model(dma) => dma.inner_mut().shut_down(),
            Engine::Own(engine) => engine.shut_down(),
        }
    }

    /// Bells to be heard now.
    pub(crate) fn take_wakes(&mut self, now: Instant) -> impl Iterator<Item = Wake> {
        if let Engine::Own(engine) = &mut self.engine {
            self.wakes.extend(std::iter::from_fn(|| engine.next_wake(now)));
        }
        // Not by the clock alone: what was written before a bell was rung must have been executed when it is heard.
        let executed_below = self.dma_ref().next_due();
        let is_due =
            |(due, _): &mut (Instant, Bell)| *due <= now && executed_below.is_none_or(|next| *due < next);
        while let Some((_, bell)) = self.bells.pop_front_if(is_due) {
            // A bell in a region that was closed meanwhile wakes nobody.
            let rung = self.local_engine().and_then(|local| {
                local.bump_bell(bell).ok().map(|(region, offset)| Wake { region: region.clone(), offset })
            });
            self.wakes.extend(rung);
        }
        self.wakes.drain(..)
    }
}

impl<C: Clock> Dma for CardDma<C> {
    fn largest_transfer(&self) -> usize {
        self.dma_ref().largest_transfer()
    }

    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
        self.dma().submit(token, op)
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        self.dma().poll()
    }

    fn next_due(&self) -> Option<Instant> {
        let bell = self.bells.front().map(|(due, _)| *due);
        [self.dma_ref().next_due(), bell].into_iter().flatten().min()
    }

    fn counts(&self) -> DmaCounts {
        self.dma_ref().counts()
    }
}

impl<C: Clock> Doorbell for CardDma<C> {
    fn ring(&mut self, bell: Bell) -> Result<(), DmaError> {
        match &mut self.engine {
            Engine::Frame(dma) => return dma.ring(bell),
            Engine::Own(engine) => return engine.ring(bell),
            Engine::Local(_) => self.bells.push_back((Instant::default(), bell)),
            Engine::Model(dma) => {
                let due = dma.settled_at(bell.address.region);
                // In the order in which they are to be heard: a region that still writes holds up only its own.
                let behind = self.bells.iter().rev().take_while(|(other, _)| *other > due).count();
                self.bells.insert(self.bells.len() - behind, (due, bell));
            }
        }
        Ok(())
    }
}
