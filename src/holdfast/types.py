"""The types in the signatures of the public names, for annotations and ``isinstance``.

Types that a program constructs are imported from ``holdfast``; types that it only receives or passes on are here.
"""

from holdfast.config.catalog import Catalog
from holdfast.engine.environment.environment import Environment, RulesFile
from holdfast.engine.environment.skills import Skill
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.log.shortening import ShorteningOutcome
from holdfast.engine.recall import RecallAnswer
from holdfast.engine.request_template import RequestInput
from holdfast.engine.run.run import Run
from holdfast.engine.upstream.upstream import Endpoint, Reply, Upstream, UpstreamRequest
from holdfast.messages.message import Role
from holdfast.messages.parts import MediaForm, Part, ProviderSignature
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.paging import TextPage
from holdfast.planning.budget import TokenBudget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import PolicyRules, ResultLimits
from holdfast.planning.settings import Settings
from holdfast.planning.stages.order import NamedStages
from holdfast.providers.answers.parsed_answer import ParsedAnswer, StopReason
from holdfast.providers.common.portable_options import FunctionTool
from holdfast.providers.common.sse import StreamEvent
from holdfast.providers.dialects.request_provider import RequestProvider
from holdfast.providers.errors.report import (
    VERDICT_KINDS,
    AnswerReport,
    ErrorReport,
    ProviderReport,
    Verdict,
    VerdictKind,
)
from holdfast.providers.fix.fix_context import FixResult, RequestFix
from holdfast.providers.requests.parsed_request import ParsedRequest
from holdfast.providers.rules.rule import Finding, Rule
from holdfast.state.conversation_state import Counters, LastRequest, MeasuredUsage, MessageHistory, ViewState
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Blob, Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, EntryBody, RequestSetup
from holdfast.state.plan import Notice, PlanOptions
from holdfast.state.target import CacheRules, CacheState, ModelLimits, OverflowStep, Prices
from holdfast.store.base import AppendResult, BlobStore, ImportResult, Quota, SearchHit, SessionInfo, SessionStore
from holdfast.store.sql.database import Durability

__all__ = [
    "VERDICT_KINDS",
    "AnswerReport",
    "AppendResult",
    "Blob",
    "BlobStore",
    "CacheRules",
    "CacheState",
    "Catalog",
    "CompactionEntry",
    "Counters",
    "DecisionEntry",
    "Dialect",
    "Durability",
    "Edit",
    "Endpoint",
    "Entry",
    "EntryBody",
    "Environment",
    "ErrorReport",
    "Finding",
    "FixResult",
    "FunctionTool",
    "ImportResult",
    "LastRequest",
    "MeasuredUsage",
    "MediaForm",
    "MessageHistory",
    "ModelLimits",
    "NamedStages",
    "Notice",
    "OverflowStep",
    "ParsedAnswer",
    "ParsedRequest",
    "Part",
    "PlanBuilder",
    "PlanOptions",
    "PolicyRules",
    "PreparedRequest",
    "Prices",
    "ProviderReport",
    "ProviderSignature",
    "Quota",
    "RecallAnswer",
    "Reply",
    "RequestFix",
    "RequestInput",
    "RequestProvider",
    "RequestSetup",
    "ResultLimits",
    "Role",
    "Rule",
    "RulesFile",
    "Run",
    "SearchHit",
    "SessionInfo",
    "SessionStore",
    "Settings",
    "ShorteningOutcome",
    "SizedMessage",
    "Skill",
    "Span",
    "StopReason",
    "StreamEvent",
    "TextPage",
    "TokenBudget",
    "Upstream",
    "UpstreamRequest",
    "Verdict",
    "VerdictKind",
    "ViewState",
]
