//! The status endpoint: HTTP on a thread of its own, the only place where tokio runs.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::oneshot;

use super::listener::BoundedListener;
use super::{Health, Status, StatusBoard};
use crate::config::ConfigSource;
use crate::halves::HalfError;

/// Serves a board until dropped.
#[derive(Debug)]
pub struct StatusServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StatusServer {
    /// Listens before it returns, so that a port in use is the caller's error and not a line in a log.
    pub fn start(
        listen: SocketAddr,
        board: Arc<StatusBoard>,
        source: &ConfigSource,
    ) -> Result<Self, HalfError> {
        let listener = bind(listen).map_err(|error| HalfError::Listen {
            address: listen,
            purpose: "status",
            source: error,
            fix: source.line_to_change("status", "listen", "\"127.0.0.1:9161\""),
        })?;
        let address = listener.local_addr().map_err(HalfError::system("learn the status address"))?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(HalfError::system("start the status endpoint"))?;
        let thread = std::thread::Builder::new()
            .name("status".to_owned())
            .spawn(move || runtime.block_on(serve(listener, board, stopped)))
            .map_err(HalfError::system("start the status endpoint"))?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens, with the port that was taken if any would do.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed already, and the card goes down anyway.
            let _ = thread.join();
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connections still open when it ends are cut: nobody who asks for a status needs a farewell.
async fn serve(listener: TcpListener, board: Arc<StatusBoard>, stopped: oneshot::Receiver<()>) {
    let routes = Router::new()
        .route("/status", get(answer_status))
        .route("/healthz", get(answer_health))
        .with_state(board);
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => BoundedListener::new(listener),
        Err(error) => {
            tracing::error!(%error, "the status endpoint cannot be served");
            return;
        }
    };
    tokio::spawn(async move { axum::serve(listener, routes).await });
    // An error means that the sender was dropped, which is how we are told to stop.
    let _ = stopped.await;
}

async fn answer_status(State(board): State<Arc<StatusBoard>>) -> Json<Status> {
    Json(board.status().await)
}

/// For load balancers: 200 as long as the card serves, with or without a host.
async fn answer_health(State(board): State<Arc<StatusBoard>>) -> (StatusCode, &'static str) {
    match board.status().await.health {
        Health::Ok => (StatusCode::OK, "ok\n"),
        Health::Degraded => (StatusCode::OK, "degraded\n"),
        Health::Failing => (StatusCode::SERVICE_UNAVAILABLE, "failing\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::super::board::tests::snapshot;
    use super::super::listener::CONNECTIONS_MAX;
    use super::*;

    fn start() -> StatusServer {
        let board = Arc::new(StatusBoard::new(snapshot()));
        StatusServer::start("127.0.0.1:0".parse().unwrap(), board, &ConfigSource::default()).unwrap()
    }

    #[test]
    fn strangers_can_take_so_many_connections_and_no_more() {
        let server = start();
        let mut idle: Vec<TcpStream> =
            (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
        // The kernel queues it behind the others, which say nothing.
        let mut late = TcpStream::connect(server.address()).unwrap();
        late.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
        late.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let error = late.read(&mut [0; 1]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
        idle.pop();
        late.set_read_timeout(None).unwrap();
        let mut answer = String::new();
        late.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    }

    #[test]
    fn a_server_ends_although_somebody_is_connected() {
        let server = start();
        let mut stranger = TcpStream::connect(server.address()).unwrap();
        drop(server);
        // Reset or closed, depending on whether it had been accepted.
        assert!(matches!(stranger.read(&mut [0; 1]), Ok(0) | Err(_)));
    }
}
