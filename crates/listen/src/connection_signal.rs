//! Tells whether a rare event woke a task, or something else.
//!
//! A connection's task is woken for every request, and for a drain or a look at its progress once in a while. To ask
//! for those each time it is woken costs more than all the rest of following it. So they are given a signal to ring.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Wakes a task and remembers that it did.
pub(crate) struct ConnectionSignal {
    inner: Arc<SignalState>,
    waker: Waker,
}

struct SignalState {
    woken: AtomicBool,
    task: Waker,
}

impl ConnectionSignal {
    /// The signal of the task that is running: the one in `signal`, unless it is another task's. A new one has woken, so
    /// that what it is for is asked once.
    pub(crate) fn of_task<'b>(signal: &'b mut Option<Self>, cx: &Context<'_>) -> &'b Self {
        if signal.as_ref().is_none_or(|signal| !signal.inner.task.will_wake(cx.waker())) {
            let inner = Arc::new(SignalState { woken: AtomicBool::new(true), task: cx.waker().clone() });
            *signal = Some(Self { waker: Waker::from(Arc::clone(&inner)), inner });
        }
        signal.as_ref().expect("it was made if there was none")
    }

    /// Polls what this signal is for, if it has woken since it was last polled.
    #[inline]
    pub(crate) fn poll_if_woken<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        // First a look that costs nothing: it nearly never has.
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
    fn a_future_is_polled_once_and_then_only_when_it_rang() {
        let (polls, rings) = (Cell::new(0), Cell::new(None));
        let mut future = pin!(poll_fn(|cx| {
            polls.set(polls.get() + 1);
            rings.set(Some(cx.waker().clone()));
            if polls.get() == 2 { Poll::Ready(()) } else { Poll::Pending }
        }));
        let (cx, mut signal) = (Context::from_waker(Waker::noop()), None);
        for _ in 0..3 {
            assert!(ConnectionSignal::of_task(&mut signal, &cx).poll_if_woken(future.as_mut()).is_pending());
            assert_eq!(polls.get(), 1);
        }
        rings.take().unwrap().wake();
        assert!(ConnectionSignal::of_task(&mut signal, &cx).poll_if_woken(future.as_mut()).is_ready());
    }

    #[test]
    fn another_task_has_another_bell() {
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
        let ring = ConnectionSignal::of_task(&mut signal, &Context::from_waker(&waker)).waker.clone();
        ring.wake();
        assert!(task.0.load(Ordering::Relaxed));
    }
}
