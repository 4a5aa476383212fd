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
    life_max: Duration,
}

impl BoundedListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(CONNECTIONS_MAX)), life_max: CONNECTION_LIFE_MAX }
    }

    async fn accept_one(&self) -> io::Result<(BoundedStream, SocketAddr)> {
        // Whoever finds no room waits in the kernel's backlog, which is bounded too.
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, address) = self.listener.accept().await?;
        let end = Box::pin(tokio::time::sleep(self.life_max));
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{ErrorKind, Write as _};

    use super::*;

    async fn read(stream: &mut BoundedStream) -> io::Result<usize> {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut buffer)).await?;
        Ok(buffer.filled().len())
    }

    #[test]
    fn a_connection_ends_with_its_time_whatever_is_said_on_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let life_max = Duration::from_millis(50);
            let listener = BoundedListener { life_max, ..BoundedListener::new(listener) };
            let mut stranger = std::net::TcpStream::connect(listener.listener.local_addr().unwrap()).unwrap();
            let (mut accepted, _) = listener.accept_one().await.unwrap();
            stranger.write_all(b"a few bytes").unwrap();
            let error = loop {
                match read(&mut accepted).await {
                    Ok(count) => assert_eq!(count, 1),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            let written = poll_fn(|context| Pin::new(&mut accepted).poll_write(context, b"x")).await;
            assert_eq!(written.unwrap_err().kind(), ErrorKind::TimedOut);
            drop(accepted);
            assert_eq!(listener.room.available_permits(), CONNECTIONS_MAX, "its place is free");
        });
    }
}
