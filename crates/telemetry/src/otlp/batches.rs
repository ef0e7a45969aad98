//! Records that wait in a bounded queue and are exported in batches.

use super::OtlpSettings;
use super::collector::{Collector, error_chain};
use crate::export_failures::ExportFailures;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Records in one request.
const MOST_RECORDS: usize = 512;
/// How often a batch is sent before it is dropped.
const MOST_ATTEMPTS: u32 = 3;

/// Log records or spans.
pub(super) trait Signal {
    /// What is queued.
    type Record: Send + fmt::Debug + 'static;

    /// The name in log lines.
    const NAME: &'static str;

    /// Sends the records. Returns the number of those that the collector rejected.
    fn send(
        &self,
        collector: &Collector,
        channel: Channel,
        records: &[Self::Record],
    ) -> impl Future<Output = Result<u64, Status>> + Send;
}

/// The entrance of a queue.
#[derive(Debug)]
pub(super) struct RecordQueue<R> {
    sender: mpsc::Sender<R>,
    dropped: Arc<AtomicU64>,
}

impl<R> RecordQueue<R> {
    pub(super) fn new(settings: &OtlpSettings) -> (Self, mpsc::Receiver<R>) {
        let (sender, receiver) = mpsc::channel(settings.queue_size.max(1));
        (Self { sender, dropped: Arc::default() }, receiver)
    }

    /// Adds a record, or drops it if the queue is full or the exporter has ended.
    pub(super) fn push(&self, record: R) {
        if self.sender.try_send(record).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The records that were dropped, in the queue or after failed exports.
    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped)
    }

    pub(super) fn dropped_count(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl<R> Clone for RecordQueue<R> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), dropped: Arc::clone(&self.dropped) }
    }
}

/// Exports the records of a queue.
#[derive(Debug)]
pub(super) struct Batches<S: Signal> {
    signal: S,
    waiting: mpsc::Receiver<S::Record>,
    /// Records that are not exported yet.
    batch: Vec<S::Record>,
    dropped: Arc<AtomicU64>,
    delay: Duration,
    collector: Collector,
    channel: Option<Channel>,
    failures: Arc<ExportFailures>,
}

impl<S: Signal> Batches<S> {
    pub(super) fn new(
        signal: S,
        waiting: mpsc::Receiver<S::Record>,
        dropped: Arc<AtomicU64>,
        settings: &OtlpSettings,
        collector: Collector,
        failures: Arc<ExportFailures>,
    ) -> Self {
        let delay = settings.batch_delay;
        Self { signal, waiting, batch: Vec::new(), dropped, delay, collector, channel: None, failures }
    }

    /// Exports until `stopping`, and then what is left in the queue.
    pub(super) async fn run(&mut self, mut stopping: watch::Receiver<bool>) {
        loop {
            self.gather(&mut stopping).await;
            if self.batch.is_empty() {
                return;
            }
            self.export(&mut stopping).await;
        }
    }

    /// Drops what is not exported yet.
    pub(super) fn abandon(&mut self) {
        self.waiting.close();
        let left = self.batch.len() + self.waiting.len();
        self.dropped.fetch_add(left as u64, Ordering::Relaxed);
        self.batch.clear();
    }

    /// Waits for a record, and then for others until the batch is full or its time is over. Once stopping, it does not wait
    /// any more, and an empty batch means that the queue has ended.
    async fn gather(&mut self, stopping: &mut watch::Receiver<bool>) {
        let mut deadline = None;
        while self.batch.len() < MOST_RECORDS {
            let room = MOST_RECORDS - self.batch.len();
            let is_over = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping), if !self.waiting.is_closed() => self.waiting.close(),
                received = self.waiting.recv_many(&mut self.batch, room) => {
                    if received == 0 {
                        return;
                    }
                    deadline.get_or_insert_with(|| Instant::now() + self.delay);
                }
                () = is_over => return,
            }
        }
    }

    /// Sends the batch, again if the error may pass. In the end it is exported or dropped.
    async fn export(&mut self, stopping: &mut watch::Receiver<bool>) {
        let mut delay = self.delay;
        for attempt in 1..=MOST_ATTEMPTS {
            let can_pass = match self.attempt().await {
                Ok(rejected) => {
                    self.dropped.fetch_add(rejected, Ordering::Relaxed);
                    self.batch.clear();
                    return;
                }
                Err(can_pass) => can_pass,
            };
            if !can_pass || attempt == MOST_ATTEMPTS {
                break;
            }
            // Once stopping, the attempts that are left follow at once.
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => {}
                () = tokio::time::sleep(delay) => {}
            }
            delay *= 2;
        }
        self.dropped.fetch_add(self.batch.len() as u64, Ordering::Relaxed);
        self.batch.clear();
    }

    /// Sends the batch once. The error is whether it may pass.
    async fn attempt(&mut self) -> Result<u64, bool> {
        let channel = self.channel.take().unwrap_or_else(|| self.collector.connect());
        let sent = self.signal.send(&self.collector, channel.clone(), &self.batch);
        match tokio::time::timeout(self.collector.timeout(), sent).await {
            Ok(Ok(rejected)) => {
                self.channel = Some(channel);
                if rejected > 0 {
                    let error = format!("the collector rejected {rejected} records");
                    self.failures.record(S::NAME, &error);
                }
                Ok(rejected)
            }
            Ok(Err(status)) => {
                self.failures.record(S::NAME, &error_chain(&status));
                Err(may_pass(status.code()))
            }
            Err(_) => {
                self.failures.record(S::NAME, &"no answer within the timeout");
                Err(true)
            }
        }
    }
}

/// The codes after which OTLP's specification allows another attempt.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    )
}
