//! What a keeper of maps has told the target by when, one turn after the other.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use ob_nvme::initiator::block_on;
use ob_pushdown::client::{
    Command, CommandAnswer, FileMap, Hold, MapExtent, MapSource, OnEnd, Session, Transport, TransportError,
};
use ob_wire_nvme::NamespaceId;
use ob_wire_nvme::pushdown::Function;

/// Says yes to everything; to who closes a file only when it is let.
#[derive(Default)]
struct Target {
    maps: AtomicU64,
    closed: Mutex<Vec<u64>>,
    answers: AtomicBool,
}

impl Transport for Target {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        let mut result = 0;
        match command.function {
            Function::Map(_) => result = self.maps.fetch_add(1, SeqCst) + 1,
            Function::Close(number) => {
                self.closed.lock().unwrap().push(number);
                poll_fn(|_| if self.answers.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }).await;
            }
            _ => {}
        }
        Ok(CommandAnswer { result, data: Vec::new() })
    }

    fn transfer_max(&self) -> usize {
        4096
    }

    fn exchange_max(&self) -> Option<usize> {
        None
    }
}

/// A file with a map of this version; 0: none.
#[derive(Default)]
struct Leased {
    version: AtomicU64,
    told: Mutex<Option<OnEnd>>,
}

impl MapSource for Leased {
    fn current(&self) -> Option<Arc<FileMap>> {
        let version = self.version.load(SeqCst);
        let extents = vec![MapExtent { at: 0, offset: 0, len: 512 }];
        let map = FileMap { namespace: NamespaceId(1), version, identity: 7, len: 512, extents };
        (version > 0).then(|| Arc::new(map))
    }

    fn on_end(&self, told: OnEnd) {
        *self.told.lock().unwrap() = Some(told);
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_writer_goes_on_when_the_target_has_closed_the_map() {
    let (target, source) = (Target::default(), Arc::new(Leased::default()));
    let woken = Arc::new(Woken::default());
    let session = block_on(Session::begin(&target, NamespaceId(1))).unwrap();
    let file = session.mapped(source.clone());
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    let mut keeper = pin!(session.keep_maps());
    assert!(keeper.as_mut().poll(&mut context).is_pending());
    source.version.store(1, SeqCst);
    session.expect(&file);
    assert!(woken.0.swap(false, SeqCst), "a file wants a map");
    assert!(keeper.as_mut().poll(&mut context).is_pending());
    assert_eq!(target.maps.load(SeqCst), 1);
    // Somebody wants to write.
    source.version.store(0, SeqCst);
    let (guard, gone) = mpsc::channel::<()>();
    let told = source.told.lock().unwrap().clone().unwrap();
    told(Hold::new(guard));
    assert!(woken.0.swap(false, SeqCst), "the keeper is told");
    assert_eq!(gone.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert!(keeper.as_mut().poll(&mut context).is_pending());
    assert_eq!(*target.closed.lock().unwrap(), [1]);
    assert_eq!(gone.try_recv(), Err(mpsc::TryRecvError::Empty), "the target has not said that it knows");
    target.answers.store(true, SeqCst);
    assert!(keeper.as_mut().poll(&mut context).is_pending());
    assert_eq!(gone.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    session.leave_maps();
    assert_eq!(keeper.as_mut().poll(&mut context), Poll::Ready(Ok(())));
}
