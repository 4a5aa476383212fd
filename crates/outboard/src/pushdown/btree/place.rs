//! Where a tree is, and how it is read there without the card.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use ob_passthrough::System;
use ob_passthrough::lease::LeaseKeeper;
use ob_pushdown::btree::{BTree, BTreeError, BTreeOptions, NamedPages, Pages, StoreCounts};
use ob_pushdown::client::{Detour, PushError, Session};
use ob_pushdown::kernel::MountedFile;
use serde_json::json;

use super::command::{TreeFile, TreeOptions};
use crate::pushdown::carrier::{Carrier, begin, begin_alone, begin_device};
use crate::pushdown::error::{BTreeProblem, PushdownError};
use crate::terminal::{counted, warn};

/// The ordinary path to a tree.
pub(super) enum TreePages<'session> {
    /// A file of the card's, which brings it piece by piece.
    Named(Box<NamedPages<'session, Carrier>>),
    /// The file system that this machine has mounted.
    Mounted(Arc<MountedFile>),
    /// A file of this machine.
    Local(File),
}

impl Pages for TreePages<'_> {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let read = match self {
            Self::Named(pages) => return pages.read(offset, len).await,
            Self::Mounted(file) => file.read_at(offset, len),
            Self::Local(file) => read_at(file, offset, len),
        };
        read.map_err(|error| error.to_string())
    }

    fn are_requests(&self) -> bool {
        matches!(self, Self::Named(_))
    }
}

/// Bytes of a file; fewer where it ends.
fn read_at(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    match file.read_exact_at(&mut bytes, offset) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// A tree that is open for a command.
pub(super) struct Opened<'session> {
    pub(super) tree: BTree<'session, Carrier, TreePages<'session>>,
    options: &'session TreeOptions,
    mounted: Option<Arc<MountedFile>>,
}

/// The session that its options mean.
pub(super) async fn begin_for(options: &TreeOptions) -> Result<Session<Carrier>, PushdownError> {
    match (&options.file, &options.target.device) {
        (TreeFile { local: Some(_), .. }, _) => begin_alone().await,
        (TreeFile { mounted: Some(_), .. }, Some(device)) => begin_device(device).await,
        _ => begin(&options.target).await,
    }
}

/// Opens the tree that its options mean.
pub(super) async fn open<'session>(
    session: &'session Session<Carrier>,
    options: &'session TreeOptions,
) -> Result<Opened<'session>, PushdownError> {
    let local = |path: &Path| {
        File::open(path).map_err(|source| PushdownError::Local { path: path.to_owned(), source })
    };
    let (file, pages, mounted) = match (&options.file, session.transport()) {
        (TreeFile { mounted: Some(path), .. }, Carrier::Kernel { transport, device }) => {
            let keeper = Arc::new(LeaseKeeper::start().map_err(PushdownError::Leases)?);
            let place = (transport.namespace(), device.as_str());
            let file = MountedFile::open(path, place, &System::default(), &keeper)
                .map_err(|error| PushdownError::Open(Box::new(error)))?;
            let file = Arc::new(file);
            (session.mapped(file.clone()), TreePages::Mounted(file.clone()), Some(file))
        }
        (TreeFile { local: Some(path), .. }, _) => {
            // Nobody is asked for this name.
            (session.named(""), TreePages::Local(local(path)?), None)
        }
        (TreeFile { file, .. }, _) => {
            let file = session.named(file.as_deref().unwrap_or_default());
            let pages = NamedPages::new(session, &file)?;
            (file, TreePages::Named(Box::new(pages)), None)
        }
    };
    let asked = BTreeOptions { only_ordinary: options.ordinary, ..BTreeOptions::default() };
    let tree = BTree::open(session, file, pages, asked).await.map_err(BTreeProblem::from)?;
    Ok(Opened { tree, options, mounted })
}

impl Opened<'_> {
    /// What it means that it does not answer.
    pub(super) fn explain(&self, error: BTreeError) -> PushdownError {
        let obstacle = match (self.tree.pages(), &error) {
            (TreePages::Named(pages), BTreeError::Read(_)) => pages.last_obstacle(),
            _ => None,
        };
        match (&self.options.file.file, obstacle) {
            (Some(name), Some(PushError::Detour(detour))) if detour != Detour::Unsupported => {
                PushdownError::Unread { name: name.clone(), detour }
            }
            (_, Some(other)) => other.into(),
            (_, None) => BTreeProblem::from(error).into(),
        }
    }

    /// Says who answered, if that is wanted.
    pub(super) fn tell(&self) {
        if !self.options.verbose {
            return;
        }
        let StoreCounts { pushed, ordinary, reads, card_reads } = self.tree.counts();
        if pushed > 0 {
            let (answers, reads) =
                (counted(pushed, "answer", "answers"), counted(card_reads, "read", "reads"));
            warn(&format!("by the card: {answers}, {reads} there"));
        }
        if ordinary > 0 {
            let (answers, reads) = (counted(ordinary, "answer", "answers"), counted(reads, "read", "reads"));
            warn(&format!("by ordinary reads: {answers}, {reads}{}", self.why()));
        }
    }

    /// Why the card did not answer, if it could have been asked.
    fn why(&self) -> String {
        let refusal = self.mounted.as_ref().and_then(|file| file.refusal());
        if let (Some(path), Some(refusal)) = (&self.options.file.mounted, refusal) {
            return format!("; the card cannot read {}: {refusal}", path.display());
        }
        self.tree
            .last_obstacle()
            .filter(|_| self.options.file.local.is_none())
            .map(|obstacle| match obstacle {
                PushError::Detour(detour) => format!("; not by the card: {detour}"),
                other => format!("; not by the card: {other}"),
            })
            .unwrap_or_default()
    }

    /// Who answered, for programs.
    pub(super) fn answered(&self) -> serde_json::Value {
        let StoreCounts { pushed, ordinary, reads, card_reads } = self.tree.counts();
        json!({ "card": pushed, "card_reads": card_reads, "ordinary": ordinary, "ordinary_reads": reads })
    }
}
