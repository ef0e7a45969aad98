//! Tells whether a rare event woke a task, or something else.
//!
//! A connection's task is woken for every request, and for a drain or a look at its progress once in a while. To ask
//! for those each time it is woken costs more than all the rest of following it. So they are given a bell to ring.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Wakes a task and remembers that it did.
pub(super) struct Bell {
    inner: Arc<Inner>,
    waker: Waker,
}

struct Inner {
    rung: AtomicBool,
    task: Waker,
}

impl Bell {
    /// The bell of the task that is running: the one in `bell`, unless it is another task's. A new one has rung, so
    /// that what it is for is asked once.
    pub(super) fn of_task<'b>(bell: &'b mut Option<Self>, cx: &Context<'_>) -> &'b Self {
        if bell.as_ref().is_none_or(|bell| !bell.inner.task.will_wake(cx.waker())) {
            let inner = Arc::new(Inner { rung: AtomicBool::new(true), task: cx.waker().clone() });
            *bell = Some(Self { waker: Waker::from(Arc::clone(&inner)), inner });
        }
        bell.as_ref().expect("it was made if there was none")
    }

    /// Polls what this bell is for, if it has rung since it was last polled.
    #[inline]
    pub(super) fn poll_if_rung<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        // First a look that costs nothing: it nearly never has.
        if !self.inner.rung.load(Ordering::Relaxed) || !self.inner.rung.swap(false, Ordering::Acquire) {
            return Poll::Pending;
        }
        future.poll(&mut Context::from_waker(&self.waker))
    }
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
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
        let (cx, mut bell) = (Context::from_waker(Waker::noop()), None);
        for _ in 0..3 {
            assert!(Bell::of_task(&mut bell, &cx).poll_if_rung(future.as_mut()).is_pending());
            assert_eq!(polls.get(), 1);
        }
        rings.take().unwrap().wake();
        assert!(Bell::of_task(&mut bell, &cx).poll_if_rung(future.as_mut()).is_ready());
    }

    #[test]
    fn another_task_has_another_bell() {
        struct Task(AtomicBool);
        impl Wake for Task {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let task = Arc::new(Task(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&task));
        let mut bell = None;
        Bell::of_task(&mut bell, &Context::from_waker(Waker::noop()));
        let ring = Bell::of_task(&mut bell, &Context::from_waker(&waker)).waker.clone();
        ring.wake();
        assert!(task.0.load(Ordering::Relaxed));
    }
}
