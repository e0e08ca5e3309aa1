//! What is known of a word by itself: the languages that it is a function word of, its part of speech in English, whether it is
//! a piece of a word. One table, looked up once for every word when a text is read.

use std::sync::LazyLock;

use crate::detectors::tokens::word_hash;

/// The commonest words of English, French, Spanish, German, Italian, Portuguese and Dutch; a word of several counts for each.
pub(super) const FUNCTION_WORDS: [&str; 7] = [
    "the of and to in is was are were that it its for with on at by from as this these those which who what when where \
     have has had not but or an be been being their there they he she his her him we our you your will would could \
     should can may than then so because about into after before under over between through while also each other some \
     any all no only one two both very if how why do does did up out my me us them i a such more most just here",
    "le la les un une des du de et est sont était étaient dans pour par sur avec sans que qui quoi dont où ne pas plus \
     ce cette ces cet il elle ils elles nous vous je tu mais ou donc car au aux en se sa son ses leur leurs été avoir \
     être fait a ont avait comme aussi très bien tout tous toute après avant chez entre jusqu lorsque puis qu",
    "el la los las un una unos unas de del y es son era eran fue fueron en por para con sin que quien cual donde \
     cuando no más muy este esta estos estas ese esa eso su sus se lo le les al como pero porque desde hasta entre sobre \
     también ya yo tú él ella nosotros ellos ha han había hay ser estar está están mi me nos todo todos cada",
    "der die das den dem des ein eine einen einem einer eines und oder aber ist sind war waren wird werden wurde wurden \
     nicht kein keine mit von vom zu zum zur im in auf aus bei nach für über unter durch gegen ohne um an am als wie wenn \
     weil dass ob er sie es wir ihr ich du sich auch noch nur schon sehr so hat haben hatte kann können muss man mehr",
    "il lo la i gli le un uno una di del della dello dei degli delle ma è sono era erano in nel nella nei nelle per \
     con su sul sulla da dal dalla che chi cui non più come quando dove anche se questo questa questi quello quella si \
     ha hanno aveva essere stato stata ci ne ogni tutti tutto molto dopo prima tra fra al alla ai alle",
    "a os as um uma uns umas de do da dos das ou mas é são era eram foi foram em no na nos nas por pelo pela para \
     com sem que quem qual onde quando não mais muito este esta isto esse essa isso seu sua seus suas se lhe ao aos à às \
     como também já eu ele ela nós eles está estão tem têm havia ser até entre sobre depois",
    "de het een en of maar is zijn was waren wordt worden werd werden niet geen met van voor naar op aan in uit bij door \
     over onder om te tot als dan toen dat die dit deze wie wat waar hij zij ze wij we ik jij je u er ook nog al zeer \
     heeft hebben had kan kunnen moet veel meer hun haar onze mijn",
];

pub(super) const ARTICLE: u8 = 1;
pub(super) const PREPOSITION: u8 = 2;
pub(super) const CONJUNCTION: u8 = 4;
pub(super) const VERB: u8 = 8;
pub(super) const ADVERB: u8 = 16;

const WORDS: [(u8, &str); 5] = [
    (ARTICLE, "the a an my your our their its every"),
    (PREPOSITION, "of to in on at by for with from into"),
    (CONJUNCTION, "and or but because"),
    (VERB, "is are was were has had have will would could can"),
    (ADVERB, "very"),
];

/// Pieces of words that stand by themselves when a vocabulary is drawn from at random.
const FRAGMENTS: &str = "ing tion ed er ment ly al ness able ous ive ity est ize ary ism ist ful less ence ance ation tions sion \
    pre con pro dis ent ant ical ological ized izing ally ement ments ers ings ional ivity eous ighth ough";

/// What the table says of a word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known(u32);

impl Known {
    const CLASS_AT: u32 = 8;
    const FRAGMENT: u32 = 1 << 15;
    const NUMBER_AT: u32 = 16;

    /// The languages that it is a function word of, as bits in the order of [`FUNCTION_WORDS`].
    pub(super) fn languages(self) -> u8 {
        self.0 as u8 & 0x7f
    }

    /// The number of the function word, whatever its first letter; 0 for none.
    pub(super) fn number(self) -> u32 {
        self.0 >> Self::NUMBER_AT
    }

    /// Its part of speech, as one of the bits above; 0 for any that is none of them.
    pub(super) fn class(self) -> u8 {
        (self.0 >> Self::CLASS_AT) as u8 & 0x1f
    }

    /// Whether it is one of [`FRAGMENTS`].
    pub(super) fn is_fragment(self) -> bool {
        self.0 & Self::FRAGMENT != 0
    }
}

/// Longer words are not in the table.
const MAX_BYTES: usize = 12;
/// Slots of the table by the first bits of a hash: few enough for the first-level cache, and two thirds of them empty.
const SLOT_BITS: u32 = 12;

/// Known words, by open addressing: most words are in none of the lists, and then the first slot says so.
pub(super) struct Table {
    /// Index of an entry and 1 more, 0 for none.
    slots: Vec<u16>,
    entries: Vec<(u64, Known)>,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

impl Table {
    pub(super) fn get() -> &'static Self {
        &TABLE
    }

    fn new() -> Self {
        let mut table = Self { slots: vec![0; 1 << SLOT_BITS], entries: Vec::new() };
        let mut number = 0;
        for (language, words) in FUNCTION_WORDS.iter().enumerate() {
            for word in words.split_whitespace() {
                let mut letters = word.chars();
                let capital: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
                number += 1;
                for form in [word, &capital] {
                    let known = table.entry(form);
                    known.0 |= 1 << language;
                    if known.number() == 0 {
                        known.0 |= number << Known::NUMBER_AT;
                    }
                }
            }
        }
        for (class, words) in WORDS {
            for word in words.split(' ') {
                table.entry(word).0 |= u32::from(class) << Known::CLASS_AT;
            }
        }
        for piece in FRAGMENTS.split_ascii_whitespace() {
            table.entry(piece).0 |= Known::FRAGMENT;
        }
        table
    }

    fn entry(&mut self, word: &str) -> &mut Known {
        debug_assert!(word.len() <= MAX_BYTES, "{word}");
        let hash = word_hash(word);
        let mut slot = slot_of(hash);
        while self.slots[slot] != 0 {
            let found = usize::from(self.slots[slot]) - 1;
            if self.entries[found].0 == hash {
                return &mut self.entries[found].1;
            }
            slot = (slot + 1) % self.slots.len();
        }
        self.entries.push((hash, Known::default()));
        let last = self.entries.len();
        self.slots[slot] = u16::try_from(last).expect("some thousand words");
        &mut self.entries[last - 1].1
    }

    /// Of a word of so many bytes.
    pub(super) fn known(&self, hash: u64, bytes: usize) -> Known {
        if bytes > MAX_BYTES {
            return Known::default();
        }
        let mut slot = slot_of(hash);
        loop {
            let Some(found) = usize::from(self.slots[slot]).checked_sub(1) else { return Known::default() };
            let (of, known) = self.entries[found];
            if of == hash {
                return known;
            }
            slot = (slot + 1) % self.slots.len();
        }
    }
}

fn slot_of(hash: u64) -> usize {
    (hash >> (u64::BITS - SLOT_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(word: &str) -> Known {
        Table::get().known(word_hash(word), word.len())
    }

    #[test]
    fn words_are_known_by_their_lists() {
        assert_eq!(of("the").languages(), 1);
        assert_eq!(of("The").number(), of("the").number());
        assert_eq!((of("the").class(), of("The").class()), (ARTICLE, 0), "parts of speech of small words only");
        assert_eq!(of("la").languages().count_ones(), 3);
        assert!(of("ment").is_fragment() && of("con").is_fragment() && of("con").languages() != 0);
        for none in ["ledger", "港", "established", "internationalisation", ""] {
            assert_eq!(of(none).0, 0, "{none}");
        }
    }

    #[test]
    fn every_word_of_the_lists_is_found_and_the_table_has_room() {
        let table = Table::get();
        assert!(table.entries.len() * 2 < table.slots.len());
        for word in FUNCTION_WORDS.iter().flat_map(|words| words.split_whitespace()) {
            assert_ne!(of(word).languages(), 0, "{word}");
        }
        assert!(WORDS.iter().all(|(class, words)| words.split(' ').all(|word| of(word).class() == *class)));
        assert!(FRAGMENTS.split_ascii_whitespace().all(|piece| of(piece).is_fragment()));
    }
}
