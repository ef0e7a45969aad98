//! Tells whether a rare event woke a task, or something else.
//!
//! A connection's task is woken for every request, and rarely for a drain or a look at its activity. To poll the future of the
//! rare events at each wakeup costs more than everything else that drives a connection. So that future gets a waker of its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A waker that records that it was called.
pub(crate) struct ConnectionSignal {
    inner: Arc<SignalState>,
    waker: Waker,
}

struct SignalState {
    woken: AtomicBool,
    task: Waker,
}

impl ConnectionSignal {
    /// The signal of the task that is running: the one in `signal`, unless it belongs to another task. A new one counts as woken, so
    /// that its future is polled once.
    pub(crate) fn of_task<'b>(signal: &'b mut Option<Self>, cx: &Context<'_>) -> &'b Self {
        if signal.as_ref().is_none_or(|signal| !signal.inner.task.will_wake(cx.waker())) {
            let inner = Arc::new(SignalState { woken: AtomicBool::new(true), task: cx.waker().clone() });
            *signal = Some(Self { waker: Waker::from(Arc::clone(&inner)), inner });
        }
        signal.as_ref().expect("created above if there was none")
    }

    /// Polls `future` if its waker was called since the last poll.
    #[inline]
    pub(crate) fn poll_if_woken<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        // A plain load first: it is nearly always false.
        if !self.inner.woken.load(Ordering::Relaxed) || !self.inner.woken.swap(false, Ordering::Acquire) {
            return Poll::Pending;
        }
        future.poll(&mut Context::from_waker(&self.waker))
    }
}

impl Wake for SignalState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::pin::pin;

    #[test]
    fn a_future_is_polled_once_and_then_when_woken() {
        let (polls, wakers) = (Cell::new(0), Cell::new(None));
        let mut future = pin!(poll_fn(|cx| {
            polls.set(polls.get() + 1);
            wakers.set(Some(cx.waker().clone()));
            if polls.get() == 2 { Poll::Ready(()) } else { Poll::Pending }
        }));
        let (cx, mut signal) = (Context::from_waker(Waker::noop()), None);
        for _ in 0..3 {
            assert!(ConnectionSignal::of_task(&mut signal, &cx).poll_if_woken(future.as_mut()).is_pending());
            assert_eq!(polls.get(), 1);
        }
        wakers.take().unwrap().wake();
        assert!(ConnectionSignal::of_task(&mut signal, &cx).poll_if_woken(future.as_mut()).is_ready());
    }

    #[test]
    fn another_task_has_another_signal() {
        struct WakeFlag(AtomicBool);
        impl Wake for WakeFlag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let task = Arc::new(WakeFlag(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&task));
        let mut signal = None;
        ConnectionSignal::of_task(&mut signal, &Context::from_waker(Waker::noop()));
        let waker_of_signal =
            ConnectionSignal::of_task(&mut signal, &Context::from_waker(&waker)).waker.clone();
        waker_of_signal.wake();
        assert!(task.0.load(Ordering::Relaxed));
    }
}
