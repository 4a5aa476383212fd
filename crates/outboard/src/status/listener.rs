//! A listener that bounds what strangers on the status port can cost the card: so many connections, for so long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

pub(super) const CONNECTIONS_MAX: usize = 32;
const CONNECTION_LIFE_MAX: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Accepts while there is room.
pub(super) struct BoundedListener {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl BoundedListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }

    async fn accept_one(&self) -> io::Result<(BoundedStream, SocketAddr)> {
        // Whoever finds no room waits in the kernel's backlog, which is bounded too.
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, address) = self.listener.accept().await?;
        let end = Box::pin(tokio::time::sleep(CONNECTION_LIFE_MAX));
        Ok((BoundedStream { stream, end, _permit: permit }, address))
    }
}

impl axum::serve::Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.accept_one().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    // Out of descriptors, most likely: trying again at once would burn a core.
                    tracing::warn!(%error, "status endpoint cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that ends with its time.
pub(super) struct BoundedStream {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl BoundedStream {
    fn check_time(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_time(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_time(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
