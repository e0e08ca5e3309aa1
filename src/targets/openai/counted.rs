//! What a server counted while an arm was asked: whether it is the process that began, what its prefix cache gave, and who lost
//! their place in the cache.

use crate::serving::metrics::Counters;
use crate::setup::{Check, CheckStatus, Observation, SAME_SERVER};
use crate::targets::openai::connection::Connection;
use crate::units::format_percent;

/// Where counters stand. Hosted services have no such page, and then nothing is known.
const PAGE: &str = "/metrics";

/// The counters of every replica; `None` for one without such a page.
pub(super) async fn read(connection: &Connection) -> Vec<Option<Counters>> {
    let mut all = Vec::new();
    for replica in 0..connection.n_replica() {
        let counters = connection.page(replica, PAGE).await.map(|page| Counters::of_page(&page));
        all.push(counters.filter(|counters| *counters != Counters::default()));
    }
    all
}

/// What follows from the counters of every replica before and after the arm was asked.
pub(super) fn checks(before: &[Option<Counters>], after: &[Option<Counters>], is_change_allowed: bool) -> Vec<Check> {
    let known: Vec<(&Counters, &Counters)> =
        before.iter().zip(after).filter_map(|(before, after)| before.as_ref().zip(after.as_ref())).collect();
    if known.is_empty() {
        return Vec::new();
    }
    let counted: Vec<Option<Counters>> = known.iter().map(|(before, after)| after.since(before)).collect();
    let restarted = counted.iter().filter(|counted| counted.is_none()).count();
    let status = match restarted {
        0 if known.len() == before.len() => CheckStatus::Confirmed,
        0 => CheckStatus::Unknown,
        _ if is_change_allowed => CheckStatus::Unknown,
        _ => CheckStatus::Contradicted,
    };
    let value = match restarted {
        0 => "counters only rose".to_owned(),
        1 if before.len() == 1 => "counters began anew: the server was started again".to_owned(),
        n => format!("counters began anew on {n} of {} replicas: they were started again", before.len()),
    };
    let mut checks = vec![check(SAME_SERVER, status, value)];
    let counted: Vec<Counters> = counted.into_iter().flatten().collect();
    let sum = |of: fn(&Counters) -> Option<f64>| counted.iter().filter_map(of).reduce(|sum, value| sum + value);
    if let Some(preemptions) = sum(|counters| counters.preemptions) {
        checks.push(check("preemptions", CheckStatus::Confirmed, format!("{preemptions:.0}")));
    }
    let total = Counters {
        prefix_cache_queries: sum(|counters| counters.prefix_cache_queries),
        prefix_cache_hits: sum(|counters| counters.prefix_cache_hits),
        prompt_tokens: sum(|counters| counters.prompt_tokens),
        ..Counters::default()
    };
    if let Some(share) = total.hit_share() {
        let value = format!("{} of the prompt tokens", format_percent(share));
        checks.push(check("prefix_cache_hits", CheckStatus::Confirmed, value));
    }
    checks
}

fn check(fact: &str, status: CheckStatus, value: String) -> Check {
    let observed = vec![Observation { value, source: PAGE.into() }];
    Check { fact: fact.into(), asked: None, observed, status }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(preemptions: f64, hits: f64, prompt_tokens: f64) -> Option<Counters> {
        Some(Counters {
            preemptions: Some(preemptions),
            prefix_cache_hits: Some(hits),
            prompt_tokens: Some(prompt_tokens),
            ..Counters::default()
        })
    }

    fn seen(checks: &[Check]) -> Vec<(&str, CheckStatus, &str)> {
        checks.iter().map(|it| (it.fact.as_str(), it.status, it.observed[0].value.as_str())).collect()
    }

    #[test]
    fn what_was_counted_in_between_is_told() {
        let before = [counters(1.0, 10.0, 100.0), counters(0.0, 0.0, 0.0)];
        let after = [counters(3.0, 30.0, 300.0), counters(0.0, 10.0, 100.0)];
        assert_eq!(
            seen(&checks(&before, &after, false)),
            [
                ("same_server", CheckStatus::Confirmed, "counters only rose"),
                ("preemptions", CheckStatus::Confirmed, "2"),
                ("prefix_cache_hits", CheckStatus::Confirmed, "10.0 % of the prompt tokens"),
            ]
        );
    }

    #[test]
    fn a_counter_that_went_back_is_another_process() {
        let (before, after) = ([counters(1.0, 10.0, 100.0)], [counters(0.0, 1.0, 10.0)]);
        let told = checks(&before, &after, false);
        assert_eq!(seen(&told).len(), 1);
        assert_eq!((told[0].fact.as_str(), told[0].status), (SAME_SERVER, CheckStatus::Contradicted));
        assert_eq!(checks(&before, &after, true)[0].status, CheckStatus::Unknown);
    }

    #[test]
    fn a_replica_that_tells_nothing_leaves_it_unknown() {
        let before = [counters(0.0, 0.0, 0.0), None];
        assert_eq!(checks(&before, &before, false)[0].status, CheckStatus::Unknown);
        assert!(checks(&[None], &[counters(0.0, 0.0, 0.0)], false).is_empty());
    }
}
