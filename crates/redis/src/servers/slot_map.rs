//! Which shard serves which slot.

use super::super::self_test::KeyTags;
use super::super::shard::RedisShard;
use super::super::url::ServerAddress;
use super::cluster::ClusterPrimary;
use std::sync::Arc;

const SLOTS: usize = 16_384;
/// Tags are tried in order; a shard with a single slot needs some 16,000 tries.
const MOST_TAGS: u32 = 1_000_000;

/// Swapped whole, never edited.
#[derive(Debug)]
pub(super) struct SlotMap {
    shards: Vec<Arc<RedisShard>>,
    /// The index of the shard of each slot; empty when there is only one.
    slots: Box<[u16]>,
}

impl SlotMap {
    /// One shard serves all.
    pub(super) fn single(shard: Arc<RedisShard>) -> Self {
        Self { shards: vec![shard], slots: Box::default() }
    }

    pub(super) fn shards(&self) -> &[Arc<RedisShard>] {
        &self.shards
    }

    pub(super) fn has(&self, shard: &RedisShard) -> bool {
        self.shards.iter().any(|known| known.number() == shard.number())
    }

    pub(super) fn shard_of(&self, key: &[u8]) -> &Arc<RedisShard> {
        if self.slots.is_empty() {
            return &self.shards[0];
        }
        &self.shards[usize::from(self.slots[usize::from(slot(key))])]
    }

    pub(super) fn own_tag(&self, shard: &RedisShard) -> String {
        (0..MOST_TAGS)
            .map(|number| format!("{number:x}"))
            .find(|tag| self.shard_of(tag.as_bytes()).number() == shard.number())
            .unwrap_or_default()
    }

    /// Tags of one slot of the shard, and of another if there is one.
    pub(super) fn own_tags(&self, shard: &RedisShard) -> KeyTags {
        let own = self.own_tag(shard);
        let is_other = |tag: &String| {
            self.shard_of(tag.as_bytes()).number() == shard.number()
                && slot(tag.as_bytes()) != slot(own.as_bytes())
        };
        let has_others =
            self.slots.iter().filter(|index| self.shards[usize::from(**index)].number() == shard.number());
        let other = (has_others.take(2).count() == 2)
            .then(|| (0..MOST_TAGS).map(|number| format!("{number:x}")).find(is_other))
            .flatten();
        KeyTags { own, other }
    }

    /// The map after `topology`, or nothing if that is no change. A new primary that has
    /// most of its slots from one that is no primary any more, is the same shard at another address.
    pub(super) fn changed(
        &self,
        topology: Vec<ClusterPrimary>,
        mut create: impl FnMut(ServerAddress) -> Arc<RedisShard>,
    ) -> Option<Self> {
        if topology.is_empty() {
            return None;
        }
        let stays = |address: &ServerAddress| topology.iter().any(|primary| primary.address == *address);
        // Old shards without a primary.
        let mut orphans: Vec<_> =
            self.shards.iter().filter(|shard| shard.address().is_none_or(|known| !stays(&known))).collect();
        let mut shards = Vec::with_capacity(topology.len());
        // A slot without a primary stays with its shard, which refuses calls for it.
        let mut slots: Vec<Option<u16>> = vec![None; SLOTS];
        for primary in &topology {
            let known = self
                .shards
                .iter()
                .find(|shard| shard.address().is_some_and(|known| *known == primary.address));
            let shard = match known {
                Some(shard) => Arc::clone(shard),
                None => match self.predecessor(primary, &orphans) {
                    Some(index) => {
                        let shard = Arc::clone(orphans.swap_remove(index));
                        shard.move_to(primary.address.clone());
                        shard
                    }
                    None => create(primary.address.clone()),
                },
            };
            let index = u16::try_from(shards.len()).ok()?;
            shards.push(shard);
            for slot in primary.slots() {
                slots[usize::from(slot)] = Some(index);
            }
        }
        let index_of = |old: &RedisShard| shards.iter().position(|shard| shard.number() == old.number());
        let slots = (0..SLOTS).map(|slot| match slots[slot] {
            Some(index) => index,
            None => self.owner(slot).and_then(index_of).and_then(|index| index.try_into().ok()).unwrap_or(0),
        });
        let new = Self { slots: slots.collect(), shards };
        (!self.is_same(&new)).then_some(new)
    }

    /// The index in `orphans` of the shard that most slots of `primary` are from.
    fn predecessor(&self, primary: &ClusterPrimary, orphans: &[&Arc<RedisShard>]) -> Option<usize> {
        let mut counts = vec![0_usize; orphans.len()];
        for slot in primary.slots() {
            let Some(owner) = self.owner(usize::from(slot)) else { continue };
            if let Some(index) = orphans.iter().position(|orphan| orphan.number() == owner.number()) {
                counts[index] += 1;
            }
        }
        let (index, count) = counts.into_iter().enumerate().max_by_key(|(_, count)| *count)?;
        (count * 2 > primary.slots().count()).then_some(index)
    }

    fn owner(&self, slot: usize) -> Option<&RedisShard> {
        let index = if self.slots.is_empty() { 0 } else { usize::from(*self.slots.get(slot)?) };
        self.shards.get(index).map(|shard| &**shard)
    }

    fn is_same(&self, other: &Self) -> bool {
        let numbers = |map: &Self| map.shards.iter().map(|shard| shard.number()).collect::<Vec<_>>();
        numbers(self) == numbers(other) && self.slots == other.slots
    }
}

/// The slot of a key: by what stands between the first `{` and the next `}`, if that is anything.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS as u16
}

/// CRC-16/XMODEM, as Redis Cluster has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::super::super::connection::{Dialer, ServerRole};
    use super::super::super::shard::ShardContext;
    use super::*;
    use std::time::Duration;

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{foo}bar"), slot(b"foo"));
        assert_eq!(slot(b"a{foo}{bar}"), slot(b"foo"));
        assert_eq!(slot(b"{}foo"), crc16(b"{}foo") % 16_384, "an empty tag is none");
        assert_eq!(slot(b"{foo"), crc16(b"{foo") % 16_384);
        assert_eq!(slot(b"foo{{bar}}"), slot(b"{bar"));
    }

    fn address(port: u16) -> ServerAddress {
        ServerAddress::Tcp("h".to_owned(), port)
    }

    fn primary(port: u16, ranges: &[(u16, u16)]) -> ClusterPrimary {
        ClusterPrimary { address: address(port), ranges: ranges.to_vec() }
    }

    struct MapFixture {
        common: Arc<ShardContext>,
        next: u32,
    }

    impl MapFixture {
        fn new() -> Self {
            let url = "redis-cluster://h".parse().unwrap();
            let dialer = Dialer::new(&url, ServerRole::ClusterNode, Duration::from_secs(1)).unwrap();
            let hook = Box::new(|_: &RedisShard, _, _, _| {});
            let timeout = Duration::from_millis(50);
            Self {
                common: Arc::new(ShardContext {
                    nodes: Default::default(),
                    dialer,
                    timeout,
                    hook,
                    rediscover: Default::default(),
                    prefix: "tg:".to_owned(),
                    errors: Default::default(),
                    tested: Default::default(),
                    refuses_cross_slots: Default::default(),
                }),
                next: 0,
            }
        }

        fn shard(&mut self, address: Option<ServerAddress>) -> Arc<RedisShard> {
            self.next += 1;
            RedisShard::new(self.next - 1, Arc::clone(&self.common), address)
        }

        fn change(&mut self, map: &SlotMap, topology: &[(u16, &[(u16, u16)])]) -> Option<SlotMap> {
            let topology = topology.iter().map(|(port, ranges)| primary(*port, ranges)).collect();
            map.changed(topology, |address| self.shard(Some(address)))
        }

        /// Three shards: 0, 1 and 2 at ports 1, 2 and 3.
        fn three(&mut self) -> SlotMap {
            let map = SlotMap::single(self.shard(None));
            self.change(&map, &[(1, &[(0, 5_000)]), (2, &[(5_001, 10_000)]), (3, &[(10_001, 16_383)])])
                .unwrap()
        }
    }

    fn numbers(map: &SlotMap) -> Vec<(u32, String)> {
        map.shards().iter().map(|shard| (shard.number(), shard.address().unwrap().to_string())).collect()
    }

    fn pairs(expected: &[(u32, &str)]) -> Vec<(u32, String)> {
        expected.iter().map(|(number, address)| (*number, (*address).to_owned())).collect()
    }

    #[test]
    fn the_first_topology_makes_shards_and_the_same_again_changes_nothing() {
        let mut setting = MapFixture::new();
        let map = setting.three();
        // The nameless first shard becomes the one that has most of its slots.
        assert_eq!(numbers(&map), pairs(&[(0, "h:1"), (1, "h:2"), (2, "h:3")]));
        let same =
            setting.change(&map, &[(1, &[(0, 5_000)]), (2, &[(5_001, 10_000)]), (3, &[(10_001, 16_383)])]);
        assert!(same.is_none());
        assert!(setting.change(&map, &[]).is_none(), "an answer without slots is no answer");
    }

    #[test]
    fn a_failover_keeps_the_shard() {
        let mut setting = MapFixture::new();
        let map = setting.three();
        let second = Arc::clone(&map.shards()[1]);
        let after =
            setting.change(&map, &[(1, &[(0, 5_000)]), (9, &[(5_001, 10_000)]), (3, &[(10_001, 16_383)])]);
        assert!(after.is_none(), "the same shards serve the same slots");
        assert_eq!(*second.address().unwrap(), address(9));
    }

    #[test]
    fn slots_move_between_shards() {
        let mut setting = MapFixture::new();
        let map = setting.three();
        let ranges: &[(u16, &[(u16, u16)])] = &[
            (1, &[(0, 4_999)]),
            (2, &[(5_000, 10_000)]),
            (3, &[(10_001, 12_000)]),
            (4, &[(12_001, 16_383)]),
        ];
        let after = setting.change(&map, ranges).unwrap();
        assert_eq!(numbers(&after), pairs(&[(0, "h:1"), (1, "h:2"), (2, "h:3"), (3, "h:4")]));
        assert_eq!(after.owner(5_000).map(RedisShard::number), Some(1));
        assert_eq!(
            after.owner(12_182).map(RedisShard::number),
            Some(3),
            "the new one is new, though it took most"
        );
        for shard in after.shards() {
            let tag = after.own_tag(shard);
            assert_eq!(after.shard_of(format!("x{{{tag}}}y").as_bytes()).number(), shard.number());
        }
    }

    #[test]
    fn a_shard_without_slots_is_gone_and_slots_without_a_server_stay_where_they_were() {
        let mut setting = MapFixture::new();
        let map = setting.three();
        let gone = Arc::clone(&map.shards()[1]);
        let after = setting.change(&map, &[(1, &[(0, 10_000)]), (3, &[(10_001, 16_000)])]).unwrap();
        assert!(!after.has(&gone));
        assert_eq!(after.owner(16_200).map(RedisShard::number), Some(2));
    }
}
