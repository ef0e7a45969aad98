//! Reads and writes the bytes of a connection: in a task of its own, and in tasks that have just sent a command.
//!
//! A task is scheduled behind all that were ready before it; under load that takes long. So a task that sends may poll the
//! connection itself, with the waker of the connection's task: later events wake that task.

use parking_lot::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// See the module.
pub(super) struct RedisDriver(Mutex<DriverState>);

struct DriverState {
    /// None when it has ended.
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Of the task.
    waker: Option<Waker>,
}

impl RedisDriver {
    pub(super) fn new(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Mutex::new(DriverState { future: Some(Box::pin(future)), waker: None }))
    }

    /// Drives the connection until it ends: the task.
    pub(super) async fn run(&self) {
        poll_fn(|context| {
            let mut driven = self.0.lock();
            driven.waker = Some(context.waker().clone());
            driven.poll(context)
        })
        .await;
    }

    /// Drives it as far as it goes now, unless another task does.
    pub(super) fn drive(&self) {
        let Some(mut driven) = self.0.try_lock() else { return };
        let Some(waker) = driven.waker.clone() else { return };
        if driven.poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(driven);
            waker.wake();
        }
    }

    /// Ends the connection.
    pub(super) fn stop(&self) {
        self.0.lock().future = None;
    }
}

impl DriverState {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(future) = &mut self.future else { return Poll::Ready(()) };
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl fmt::Debug for RedisDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisDriver")
    }
}
