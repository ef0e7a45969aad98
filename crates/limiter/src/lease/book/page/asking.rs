//! What leaves for the store: the requests of one client that ask for the same go together.

use super::Page;
use crate::lease::book::flight::{Flight, Item};
use crate::lease::book::reports::{report_ask, worth_telling};
use crate::lease::book::{Call, Settings};
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::lending::Report;
use tollgate_core::script::{Ask, ChargeAsk, MOST_PARTS, Run};

impl<W> Page<W> {
    /// Puts a waiter into the queue of its flight.
    pub(in crate::lease::book) fn join(
        &mut self,
        group: u64,
        items: impl FnOnce() -> (Arc<str>, Arc<[Item]>),
        cost: u32,
        waiter: W,
    ) {
        let flight = self.flights.entry(group).or_insert_with(|| {
            let (key, items) = items();
            Flight { key, items, queue: Vec::new(), is_out: false }
        });
        flight.queue.push((cost, waiter));
    }

    /// The next call of a flight, if somebody waits and none is under way.
    pub(in crate::lease::book) fn depart(
        &mut self,
        client: u64,
        group: u64,
        now_us: u64,
        nodes: u32,
        settings: &Settings,
    ) -> Option<Call<W>> {
        let flight = self.flights.get_mut(&group)?;
        if flight.is_out {
            return None;
        }
        if flight.queue.is_empty() {
            self.flights.remove(&group);
            return None;
        }
        flight.is_out = true;
        let mut runs: SmallVec<[Run; 2]> = SmallVec::new();
        let mut aboard = 0;
        for (cost, _) in &flight.queue {
            let is_full = runs.len() == MOST_PARTS;
            match runs.last_mut() {
                Some(run) if run.cost == *cost => run.repeats += 1,
                _ if is_full => break,
                _ => runs.push(Run { repeats: 1, cost: *cost }),
            }
            aboard += 1;
        }
        let waiters = flight.queue.drain(..aboard).map(|(cost, waiter)| (cost, Some(waiter))).collect();
        let (key, items) = (Arc::clone(&flight.key), Arc::clone(&flight.items));
        let charges = items.iter().map(|item| self.charge_ask(item, &key, client, now_us, nodes, settings));
        let ask = Ask { runs, charges: charges.collect() };
        Some(Call { key, ask, sent_us: now_us, client, group, items, waiters })
    }

    /// What is asked of one limit. What is left in hand was not enough: it goes back with the same call.
    fn charge_ask(
        &mut self,
        item: &Item,
        key: &Arc<str>,
        client: u64,
        now_us: u64,
        nodes: u32,
        settings: &Settings,
    ) -> ChargeAsk {
        let mut ask = ChargeAsk {
            meter: item.meter,
            field: item.field,
            enforced: item.enforced,
            want: 0,
            share: 1,
            reports: SmallVec::new(),
        };
        if let Some(lease) = self.leases.get_mut(&item.key) {
            if item.leased {
                (ask.want, ask.share) = lease.ahead(nodes, now_us, settings);
            }
            lease.credit.bring_back(u64::MAX);
            ask.reports = worth_telling(lease.credit.reports(now_us), &lease.meter);
            lease.asked_us = now_us;
            lease.was_refused = false;
            lease.place.get_or_insert_with(|| (Arc::clone(key), client, item.field));
        }
        ask
    }

    /// A call that brings back what `items` were charged.
    pub(in crate::lease::book) fn refund(
        &mut self,
        client: u64,
        key: Arc<str>,
        items: Arc<[Item]>,
        cost: u32,
        store_us: u64,
        now_us: u64,
    ) -> Call<W> {
        let charges = items.iter().map(|item| {
            let report = Report { epoch: item.meter.epoch(store_us), refunded: cost, ..Report::default() };
            report_ask(item.meter, item.field, SmallVec::from_slice(&[report]))
        });
        let ask = Ask { runs: SmallVec::new(), charges: charges.collect() };
        Call { key, ask, sent_us: now_us, client, group: 0, items, waiters: Vec::new() }
    }

    /// Drops what is believed of `items`: this node brings tokens back.
    pub(in crate::lease::book) fn forget<'i>(&mut self, items: impl Iterator<Item = &'i Item>) {
        for item in items {
            if let Some(lease) = self.leases.get_mut(&item.key) {
                lease.memory = None;
            }
        }
    }

    /// Everybody in the queue of a flight, which is no more.
    pub(in crate::lease::book) fn disband(&mut self, group: u64) -> Vec<W> {
        let flight = self.flights.remove(&group);
        flight.map_or(Vec::new(), |flight| flight.queue.into_iter().map(|(_, waiter)| waiter).collect())
    }
}
